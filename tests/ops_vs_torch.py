#!/usr/bin/env python3
"""The 40 commonest ops beside torch, at three sizes, one thread, in turns.

    ops_vs_torch.py BIN [--rounds 3] [--only OP...]      BIN: the folder with op_times

A line for each op: torch's time over Troupe's at each size (above 1: Troupe is faster), medians over rounds, and their median. Both write into
memory that is there where torch can (out=). Needs torch; not one of the tests that CI runs.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F


def elementwise(op, f, operands=1, attributes=""):
    def case(n):
        x = [torch.rand(n) * 0.9 + 0.1 for _ in range(operands)]
        out = torch.empty(n)
        return f"{op} {','.join([f'f32[{n}]'] * operands)} {attributes}", lambda: f(*x, out)
    return case


def rows(n):
    """A matrix of n elements: rows of 64 to 1024."""
    width = {4096: 64, 262144: 256, 4194304: 1024}[n]
    return n // width, width


def on_rows(op, f, attributes=""):
    def case(n):
        a, b = rows(n)
        x = torch.rand(a, b)
        return f"{op} f32[{a}x{b}] {attributes}", lambda: f(x)
    return case


def side(n):
    return {4096: 64, 262144: 256, 4194304: 768}[n]


def images(n):
    """n elements as images of 32 channels."""
    return {4096: (1, 32, 11, 11), 262144: (8, 32, 32, 32), 4194304: (128, 32, 32, 32)}[n]


def matmul(n):
    m = side(n)
    a, b, out = torch.rand(m, m), torch.rand(m, m), torch.empty(m, m)
    return f"matmul f32[{m}x{m}],f32[{m}x{m}]", lambda: torch.mm(a, b, out=out)


def batched(n):
    batch = n // 4096
    a, b, out = torch.rand(batch, 64, 64), torch.rand(batch, 64, 64), torch.empty(batch, 64, 64)
    return f"matmul f32[{batch}x64x64],f32[{batch}x64x64]", lambda: torch.bmm(a, b, out=out)


def conv(n):
    i = images(n)
    x, w = torch.rand(i), torch.rand(32, 32, 3, 3)
    return f"conv2d f32[{'x'.join(map(str, i))}],f32[32x32x3x3] before=[1,1] after=[1,1]", lambda: F.conv2d(x, w, padding=1)


def pool(op, f):
    def case(n):
        i = images(n)
        x = torch.rand(i)
        return f"{op} f32[{'x'.join(map(str, i))}] window=[2,2]", lambda: f(x)
    return case


def batch_norm(n):
    i = images(n)
    x = torch.rand(i)
    return f"standardize f32[{'x'.join(map(str, i))}] axes=[0,2,3]", lambda: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)


def gather(n):
    a, b = rows(n)
    table, ids = torch.rand(16, b), torch.randint(0, 16, (a,))
    return f"gather f32[16x{b}],i64[{a}]", lambda: F.embedding(ids, table)


def scatter(n):
    a, b = rows(n)
    table, ids, x = torch.rand(16, b), torch.randint(0, 16, (a,)), torch.rand(a, b)
    return f"scatter_add f32[16x{b}],i64[{a}],f32[{a}x{b}]", lambda: table.index_add(0, ids, x)


def concat(n):
    a, b = rows(n)
    x, y = torch.rand(a, b // 2), torch.rand(a, b // 2)
    return f"concat f32[{a}x{b // 2}],f32[{a}x{b // 2}] axis=1", lambda: torch.cat([x, y], 1)


def where(n):
    c, x, y = torch.rand(n) > 0.5, torch.rand(n), torch.rand(n)
    return f"where bool[{n}],f32[{n}],f32[{n}]", lambda: torch.where(c, x, y)


def less(n):
    x, y, out = torch.rand(n), torch.rand(n), torch.empty(n, dtype=torch.bool)
    return f"less f32[{n}],f32[{n}]", lambda: torch.lt(x, y, out=out)


def cross_entropy(n):
    a, b = rows(n)
    x, y = torch.rand(a, b, requires_grad=True), torch.randint(0, 16, (a,))

    def run():  # Troupe's gives the gradient, too
        x.grad = None
        F.cross_entropy(x, y, reduction="sum").backward()
    return f"softmax_cross_entropy f32[{a}x{b}],i32[{a}],f32[]", run


def bias(n):
    a, b = rows(n)
    x, y, out = torch.rand(a, b), torch.rand(b), torch.empty(a, b)
    return f"add f32[{a}x{b}],f32[{b}]", lambda: torch.add(x, y, out=out)


CASES = {
    "add": elementwise("add", lambda x, y, o: torch.add(x, y, out=o), 2),
    "add bias": bias,
    "sub": elementwise("sub", lambda x, y, o: torch.sub(x, y, out=o), 2),
    "mul": elementwise("mul", lambda x, y, o: torch.mul(x, y, out=o), 2),
    "div": elementwise("div", lambda x, y, o: torch.div(x, y, out=o), 2),
    "maximum": elementwise("maximum", lambda x, y, o: torch.maximum(x, y, out=o), 2),
    "pow": elementwise("pow", lambda x, y, o: torch.pow(x, y, out=o), 2),
    "multiply-add": elementwise("fused_multiply_add", lambda x, y, z, o: torch.addcmul(z, x, y, out=o), 3),
    "abs": elementwise("abs", lambda x, o: torch.abs(x, out=o)),
    "square": elementwise("square", lambda x, o: torch.square(x, out=o)),
    "exp": elementwise("exp", lambda x, o: torch.exp(x, out=o)),
    "log": elementwise("log", lambda x, o: torch.log(x, out=o)),
    "sqrt": elementwise("sqrt", lambda x, o: torch.sqrt(x, out=o)),
    "rsqrt": elementwise("rsqrt", lambda x, o: torch.rsqrt(x, out=o)),
    "sin": elementwise("sin", lambda x, o: torch.sin(x, out=o)),
    "erf": elementwise("erf", lambda x, o: torch.erf(x, out=o)),
    "tanh": elementwise("tanh", lambda x, o: torch.tanh(x, out=o)),
    "sigmoid": elementwise("sigmoid", lambda x, o: torch.sigmoid(x, out=o)),
    "relu": elementwise("relu", lambda x, o: torch.clamp_min(x, 0, out=o)),
    "gelu": elementwise("gelu", lambda x, o: F.gelu(x)),
    "softplus": elementwise("softplus", lambda x, o: F.softplus(x)),
    "less": less,
    "where": where,
    "sum": on_rows("reduce_sum", lambda x: x.sum()),
    "sum of columns": on_rows("reduce_sum", lambda x: x.sum(0), "axes=[0]"),
    "max of rows": on_rows("reduce_max", lambda x: x.amax(1), "axes=[1]"),
    "argmax": on_rows("argmax", lambda x: x.argmax(1), "axis=1"),
    "softmax": on_rows("softmax", lambda x: x.softmax(1)),
    "log_softmax": on_rows("log_softmax", lambda x: x.log_softmax(1)),
    "layer_norm": on_rows("standardize", lambda x: F.layer_norm(x, (x.shape[1],)), "axes=[1]"),
    "batch_norm": batch_norm,
    "cross_entropy": cross_entropy,
    "cumulative_sum": on_rows("cumulative_sum", lambda x: x.cumsum(1), "axis=1"),
    "transpose": on_rows("transpose", lambda x: x.t().contiguous()),
    "concat": concat,
    "gather": gather,
    "scatter_add": scatter,
    "matmul": matmul,
    "matmul, batches": batched,
    "conv2d": conv,
    "max_pool2d": pool("max_pool2d", lambda x: F.max_pool2d(x, 2, return_indices=True)),
    "avg_pool2d": pool("avg_pool2d", lambda x: F.avg_pool2d(x, 2)),
}
SIZES = (4096, 262144, 4194304)


def time_of(f):
    f()
    begin = time.perf_counter()
    f()
    times = max(1, int(5e-3 / max(time.perf_counter() - begin, 1e-7)))
    rates = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(times):
            f()
        rates.append((time.perf_counter() - begin) / times)
    return statistics.median(rates) * 1e9


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*")
    a = parser.parse_args()
    torch.set_num_threads(1)
    ours = subprocess.Popen([os.path.join(a.bin, "op_times")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(line):
        ours.stdin.write(line + "\n")
        ours.stdin.flush()
        return float(ours.stdout.readline())

    print(f"torch {torch.__version__}, one thread: its time over Troupe's at {', '.join(map(str, SIZES))} elements; their median")
    medians = {}
    for name, case in CASES.items():
        if a.only and name not in a.only:
            continue
        ratios, texts = [], []
        for n in SIZES:
            line, f = case(n)
            turns = [(ask(line), time_of(f)) for _ in range(a.rounds)]
            ratios.append(statistics.median(theirs / mine for mine, theirs in turns))
            texts.append(f"{ratios[-1]:6.2f} ({statistics.median(t[0] for t in turns) / 1e3:.1f} us)")
        medians[name] = statistics.median(ratios)
        print(f"{name:16} {'  '.join(f'{t:22}' for t in texts)}  {medians[name]:6.2f}", flush=True)
    ours.stdin.close()
    ours.wait()
    good = sum(m >= 0.8 for m in medians.values())
    print(f"{len(medians)} ops: {good} at 0.8 or more, {sum(m < 0.3 for m in medians.values())} below 0.3, least {min(medians.values()):.2f}")


if __name__ == "__main__":
    sys.exit(main())
