#!/usr/bin/env python3
"""Troupe's programs on a GPU beside torch on the same machine, by turns; and towers on two virtual devices beside one.

    beside_torch.py BIN [--turns 3] [--device gpu:0] [--torch cuda] [--compile] [PART...]     BIN: the folder with the programs

Parts: tiny, perceptron, cnn, language_model, towers; default: all. A line a figure: what, unit, median, spread. Both sides begin with the same weights and see the same batches; f32, without
tf32. Steps a second are those between a short run and a long one, so that loading and compiling count for neither. Torch runs eagerly, with each step as one CUDA graph, and with --compile,
which takes minutes, compiled. --device host --torch cpu tries it without a GPU. Without torch, or without a GPU, parts say so in a line. Exit codes: 0, 1 losses differ or a program failed,
2 usage, 77 nothing could be compared.
"""

import argparse
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

BATCH, RATE, MOMENTUM = 128, 0.05, 0.9
LAYERS, WIDTH, HEADS, CONTEXT, TEXTS, TEXT_RATE = 4, 128, 4, 128, 16, 1e-3
TOLERANCE = 1e-4  # of a loss; sums are in another order
MASK = (1 << 64) - 1
PARTS = ["tiny", "perceptron", "cnn", "language_model", "towers"]


class Skipped(Exception):
    pass


def line(what, unit, values):
    values = sorted(values)
    print(f"{what:<72} {unit:<8} {statistics.median(values):10.3f}  ({values[0]:.3f} to {values[-1]:.3f})", flush=True)


def run(program, *flags):
    done = subprocess.run([program, *map(str, flags)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{os.path.basename(program)} {' '.join(map(str, flags))}: exit code {done.returncode}: {(done.stderr + done.stdout).strip()[-500:]}")
    return done.stdout


def read_losses(path):
    with open(path, encoding="utf-8") as file:
        return [float(row.split(",")[1]) for row in file]


def load_safetensors(path):
    import numpy as np
    import torch
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            tensors[name] = torch.from_numpy(np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"]).copy())
    return tensors


def write_images(folder, samples):
    """IDX files of images that show their label, a bright place for each, in some noise. A batch of them is all there is to learn, so that every step sees the same, in whatever order.

    Of pure noise a network learns nothing for a while and then all at once, and a difference in the last bit moves the step at which it does: then no two ways to add up have equal losses."""
    draw = random.Random(1)
    for stem, count in (("train", samples), ("t10k", 1000)):
        labels = bytes(draw.randrange(10) for _ in range(count))
        with open(os.path.join(folder, f"{stem}-images-idx3-ubyte"), "wb") as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28))
            for label in labels:
                image = bytearray(v & 0x3F for v in draw.randbytes(784))
                top, left = 2 + 13 * (label // 5), 1 + 5 * (label % 5)
                for row in range(top, top + 10):
                    for column in range(left, left + 5):
                        image[row * 28 + column] += 128
                file.write(image)
        with open(os.path.join(folder, f"{stem}-labels-idx1-ubyte"), "wb") as file:
            file.write(struct.pack(">II", 0x801, count) + labels)


def device_flags(a):
    return [] if a.device == "host" else ["--device", a.device, "--gpus", 1]


def compare(name, unit, each, a, ours, theirs, steps):
    """ours(steps): (seconds, losses). theirs: by what is said of it, steps -> (seconds, losses). Rates of the longer of two runs, less the shorter."""
    short, long = steps
    rates = {side: [] for side in ("troupe", *theirs)}
    ratios = {side: [] for side in theirs}
    apart = {side: 0 for side in theirs}
    last = {}

    def time_of(side, train):
        first, _ = train(short)
        second, seen = train(long)
        took = (second - first) / (long - short)
        rates[side].append(each / took)
        last[side] = seen
        return took

    for _ in range(a.turns):
        here = time_of("troupe", ours)
        for side, train in theirs.items():
            there = time_of(side, train)
            ratios[side].append(there / here)
            apart[side] = max(apart[side], max(abs(x - y) / (1 + abs(y)) for x, y in zip(last["troupe"], last[side])))
    worst = 0
    for side, all_rates in rates.items():
        line(f"{name}: {side}", unit, all_rates)
    for side in theirs:
        line(f"{name}: troupe / {side}", "x", ratios[side])
        print(f"{name}: losses of {long} steps and those of {side} differ by at most {apart[side]:.1e}; the last ones: {last['troupe'][-1]:.6f} and {last[side][-1]:.6f}", flush=True)
        if len(last["troupe"]) != len(last[side]) or apart[side] > TOLERANCE:
            print(f"failed: {name}: losses differ from those of {side} by more than {TOLERANCE}")
            worst = 1
    return worst


def torch_on(a):
    try:
        import numpy  # noqa: F401
        import torch
    except ImportError as e:
        raise Skipped(f"torch is not here ({e})") from e
    if a.torch == "cuda":
        if not torch.cuda.is_available():
            raise Skipped("torch sees no CUDA device")
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
    else:
        torch.set_num_threads(1)
    return torch


def synchronize(torch, a):
    if a.torch == "cuda":
        torch.cuda.synchronize()


def timed_steps(torch, a, steps, step):
    """step(i): its loss, on the device. Nothing waits for a loss before the end, as nothing does in Troupe."""
    losses = []
    synchronize(torch, a)
    began = time.perf_counter()
    for i in range(steps):
        losses.append(step(i).detach())
    synchronize(torch, a)
    return time.perf_counter() - began, [x.item() for x in losses]


def captured(torch, weights, w, optimizer, loss_of):
    """A whole step as one CUDA graph, and the loss that it leaves; weights and optimizer are then as before the first step."""

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    with torch.no_grad():
        for name, t in weights.items():
            w[name].copy_(t)
        for state in optimizer.state.values():
            for t in state.values():
                if torch.is_tensor(t):
                    t.zero_()
    return graph, loss


def ways_of_torch(torch, a, weights, make_optimizer, loss_of, batch_of):
    """What is compared: by what is said of it, steps -> (seconds, losses). loss_of(w, *batch); batch_of(i): pinned tensors of step i; make_optimizer(w, is_captured)."""

    def fresh():
        return {name: t.to(a.torch, copy=True).requires_grad_() for name, t in weights.items()}

    def to_device(batch):
        return [t.to(a.torch, non_blocking=True) for t in batch]

    def eager(steps, loss_of=loss_of):
        w = fresh()
        optimizer = make_optimizer(w, False)

        def step(i):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(w, *to_device(batch_of(i)))
            loss.backward()
            optimizer.step()
            return loss

        return timed_steps(torch, a, steps, step)

    def in_graphs(steps):
        w = fresh()
        optimizer = make_optimizer(w, True)
        batch = to_device(batch_of(0))
        graph, loss = captured(torch, weights, w, optimizer, lambda: loss_of(w, *batch))

        def step(i):
            for to, t in zip(batch, batch_of(i)):
                to.copy_(t, non_blocking=True)
            graph.replay()
            return loss.clone()

        return timed_steps(torch, a, steps, step)

    ways = {"torch": eager}
    if a.torch == "cuda":
        ways["torch in CUDA graphs"] = in_graphs
    if a.compile:
        made = torch.compile(loss_of)
        ways["torch compiled"] = lambda steps: eager(steps, made)
    return ways


def tiny(a):
    torch = torch_on(a)
    ops = 1000
    x, y = torch.zeros(16, device=a.torch), torch.ones(16, device=a.torch)
    figures = {name: [] for name in ("enqueued", "step", "replayed", "replayed step")}

    def all_ops():
        for _ in range(ops):
            torch.add(x, y, out=x)

    graph = None
    with torch.no_grad():
        all_ops()
        if a.torch == "cuda":
            synchronize(torch, a)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                all_ops()
            graph.replay()
            synchronize(torch, a)
        for _ in range(3 * a.turns):
            for kind, enqueue in (("enqueued", all_ops), ("replayed", graph.replay if graph else None)):
                if enqueue is None:
                    continue
                began = time.perf_counter()
                enqueue()
                here = time.perf_counter()
                synchronize(torch, a)
                figures[kind].append((here - began) / ops * 1e6)
                figures["step" if kind == "enqueued" else "replayed step"].append((time.perf_counter() - began) * 1e3)
    for kind, what, unit in (("enqueued", "host time of an op enqueued, of 1,000 adds of 16 floats, torch eager", "us"), ("step", "a step of 1,000 adds of 16 floats, torch eager", "ms"),
                             ("replayed", "host time of an op, torch with a CUDA graph", "us"), ("replayed step", "the same step, torch with a CUDA graph", "ms")):
        if figures[kind]:
            line(what, unit, figures[kind])
    return 0


def image_model(torch, kind, w, x):
    f = torch.nn.functional

    def dense(x, name):
        return torch.addmm(w[name + "/bias"], x, w[name + "/weights"])

    if kind == "perceptron":
        x = f.relu(dense(x, "dense_1"))
        return dense(f.relu(dense(x, "dense_2")), "dense_3")
    x = x.view(-1, 1, 28, 28)
    for name in ("conv_1", "conv_2"):
        x = f.max_pool2d(f.relu(f.conv2d(x, w[name + "/weights"], w[name + "/bias"].view(-1), padding=2)), 2)
    return dense(f.relu(dense(x.flatten(1), "dense_1")), "dense_2")


def images(a, kind):
    torch = torch_on(a)
    import numpy as np
    program = os.path.join(a.bin, "train_classifier")
    with tempfile.TemporaryDirectory() as folder:
        write_images(folder, BATCH)
        common = ["--data", folder, "--model", kind, "--batch", BATCH, "--momentum", MOMENTUM, "--json", *device_flags(a)]
        initial, losses = os.path.join(folder, "initial.safetensors"), os.path.join(folder, "losses")
        run(program, *common, "--epochs", 1, "--learning-rate", 0, "--save", initial)
        weights = load_safetensors(initial)
        with open(os.path.join(folder, "train-images-idx3-ubyte"), "rb") as file:
            x = torch.from_numpy(np.frombuffer(file.read()[16:], np.uint8).reshape(BATCH, 784).astype(np.float32) / 255)
        with open(os.path.join(folder, "train-labels-idx1-ubyte"), "rb") as file:
            y = torch.from_numpy(np.frombuffer(file.read()[8:], np.uint8).astype(np.int64))
        if a.torch == "cuda":
            x, y = x.pin_memory(), y.pin_memory()

        def ours(steps):
            answer = json.loads(run(program, *common, "--epochs", steps, "--learning-rate", RATE, "--losses", losses))
            return answer["seconds"], read_losses(losses)

        theirs = ways_of_torch(torch, a, weights, lambda w, _: torch.optim.SGD(w.values(), lr=RATE, momentum=MOMENTUM),
                               lambda w, x, y: torch.nn.functional.cross_entropy(image_model(torch, kind, w, x), y), lambda _: (x, y))
        return compare(f"{kind}, batch {BATCH}", "images/s", BATCH, a, ours, theirs, (200, 2200) if a.device != "host" else (5, 15))


def piece(seed, step, place, places):
    """devices/files/text_file.cpp: where a piece of text begins."""
    z = (seed * 0xD1342543DE82EF95 + step * 0x9E3779B97F4A7C15 + (place + 1) * 0xBF58476D1CE4E5B9) & MASK
    for _ in range(2):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
    return z % places


def language_model(a):
    torch = torch_on(a)
    import numpy as np
    f = torch.nn.functional
    program = os.path.join(a.bin, "train_language_model")
    with tempfile.TemporaryDirectory() as folder:
        text, initial, losses = (os.path.join(folder, n) for n in ("text", "initial.safetensors", "losses"))
        draw = random.Random(2)
        words = ["".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(draw.randrange(2, 9))) for _ in range(500)]
        with open(text, "w", encoding="ascii") as out:
            out.write(" ".join(draw.choice(words) for _ in range(40_000)))
        with open(text, "rb") as file:
            content = np.frombuffer(file.read(), np.uint8)
        common = ["--text", text, "--batch", TEXTS, "--context", CONTEXT, "--layers", LAYERS, "--width", WIDTH, "--heads", HEADS, "--json", *device_flags(a)]
        run(program, *common, "--steps", 1, "--learning-rate", 0, "--save", initial)
        weights = load_safetensors(initial)
        mask = torch.full((CONTEXT, CONTEXT), float("-inf"), device=a.torch).triu(1)

        def logits(w, tokens):
            def dense(x, name):
                return x @ w[name + "/weights"] + w[name + "/bias"]

            def norm(x, name):
                return f.layer_norm(x, (WIDTH,), w[name + "/scale"], w[name + "/shift"])

            x = f.embedding(tokens, w["bytes/table"]) + w["places"]
            for i in range(1, LAYERS + 1):
                b = f"block_{i}/"
                q, k, v = (t.view(TEXTS, CONTEXT, HEADS, -1).transpose(1, 2) for t in dense(norm(x, b + "norm_1"), b + "attention/projection").split(WIDTH, 2))
                if a.sdpa:
                    mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True)
                else:
                    mixed = (q @ k.transpose(2, 3) / (WIDTH / HEADS) ** 0.5 + mask).softmax(-1) @ v
                x = x + dense(mixed.transpose(1, 2).reshape(TEXTS, CONTEXT, WIDTH), b + "attention/output")
                x = x + dense(f.gelu(dense(norm(x, b + "norm_2"), b + "dense_1")), b + "dense_2")
            return dense(norm(x, "norm"), "logits")

        def ours(steps):
            answer = json.loads(run(program, *common, "--steps", steps, "--learning-rate", TEXT_RATE, "--losses", losses))
            return answer["seconds"], read_losses(losses)

        def batch_of(i):
            starts = [piece(1, i, place, len(content) - CONTEXT) for place in range(TEXTS)]
            pieces = torch.from_numpy(np.stack([content[s:s + CONTEXT + 1] for s in starts]).astype(np.int64))
            return (pieces.pin_memory() if a.torch == "cuda" else pieces,)

        theirs = ways_of_torch(torch, a, weights,
                               lambda w, is_captured: torch.optim.AdamW(w.values(), lr=TEXT_RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, capturable=is_captured),
                               lambda w, pieces: f.cross_entropy(logits(w, pieces[:, :-1]).reshape(-1, 256), pieces[:, 1:].reshape(-1)), batch_of)

        result = 0
        for a.sdpa in (False, True) if hasattr(f, "scaled_dot_product_attention") else (False,):
            name = "language model, torch's attention fused" if a.sdpa else "language model"
            result = max(result, compare(name, "tokens/s", TEXTS * CONTEXT, a, ours, theirs, (30, 330) if a.device != "host" else (2, 5)))
        return result


def towers(a):
    """One tower on one device, and two on two virtual devices of one chip: the same losses to rounding, and how long a step takes."""
    program = os.path.join(a.bin, "train_towers")
    with tempfile.TemporaryDirectory() as folder:
        write_images(folder, 2048)
        losses = os.path.join(folder, "losses")
        short, long = (5, 105) if a.device != "host" else (1, 2)  # epochs of 16 steps

        def train(count, epochs):
            place = ["--on", "cpu", "--threads", count] if a.device == "host" else ["--on", "gpu", "--gpus", count]
            answer = json.loads(run(program, "--data", folder, "--towers", count, "--batch", BATCH, "--epochs", epochs, "--losses", losses, "--json", *place))
            return answer["seconds"], answer["steps"], read_losses(losses)

        took, apart, ratios = {1: [], 2: []}, 0, []
        for _ in range(a.turns):
            seen = {}
            for count in (1, 2):
                first = train(count, short)
                second = train(count, long)
                took[count].append((second[0] - first[0]) / (second[1] - first[1]) * 1e3)
                seen[count] = second[2]
            ratios.append(took[2][-1] / took[1][-1])
            apart = max(apart, max(abs(x - y) / (1 + abs(y)) for x, y in zip(seen[2], seen[1])))
        kind = "host stream" if a.device == "host" else "virtual device"
        line(f"a step of one tower on one {kind}", "ms", took[1])
        line(f"a step of two towers on two {kind}s", "ms", took[2])
        line("two towers / one", "x", ratios)
        print(f"losses of one tower and of two differ by at most {apart:.1e}", flush=True)
        if apart > TOLERANCE:
            print(f"failed: towers: losses differ by more than {TOLERANCE}")
            return 1
        return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin")
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="gpu:0")
    parser.add_argument("--torch", default="cuda")
    parser.add_argument("--compile", action="store_true")
    a = parser.parse_intermixed_args()
    a.sdpa = False
    if not set(a.parts) <= set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    worst, ran = 0, 0
    for part in a.parts or PARTS:
        try:
            worst = max(worst, images(a, part) if part in ("perceptron", "cnn") else globals()[part](a))
            ran += 1
        except Skipped as e:
            print(f"skipped: {part}: {e}", flush=True)
        except (RuntimeError, OSError, ValueError, KeyError) as e:
            print(f"failed: {part}: {e}", flush=True)
            worst, ran = 1, ran + 1
    return worst if ran > 0 else 77


if __name__ == "__main__":
    sys.exit(main())
