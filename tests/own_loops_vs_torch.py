#!/usr/bin/env python3
"""Loops of a program's own beside the same loops in torch, from equal weights over equal data. Not run by ctest: it needs torch.

    own_loops_vs_torch.py [BIN_FOLDER]      prints the largest difference of losses and of weights of each, exits 1 if one is above 1e-5

Differences of losses are relative, of weights over the largest weight of their variable.
"""

import json
import math
import os
import struct
import subprocess
import sys
import tempfile

STEPS, ROWS, LIMIT = 50, 8, 1e-5


def load(path, torch):
    with open(path, "rb") as f:
        length = struct.unpack("<Q", f.read(8))[0]
        head, data = json.loads(f.read(length)), f.read()
    out = {}
    for name, entry in head.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        out[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).reshape(entry["shape"]).clone()
    return out


def main():
    try:
        import torch
        from torch.nn.functional import softplus
    except ImportError:
        print("own_loops_vs_torch.py: there is no torch here (Debian: python3-torch, with /usr/bin/python3)", file=sys.stderr)
        return 77
    torch.set_num_threads(1)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = os.path.join(sys.argv[1] if len(sys.argv) > 1 else os.path.join(root, "build", "bin"), "own_loops")

    def samples(width, begin):
        return torch.tensor([math.sin(begin + 0.7 * i) for i in range(ROWS * width)], dtype=torch.float32).reshape(ROWS, width)

    def net(w, name, x):
        hidden = torch.tanh(x @ w[f"{name}/one/weights"] + w[f"{name}/one/bias"])
        return hidden @ w[f"{name}/two/weights"] + w[f"{name}/two/bias"]

    def loss_of(w, x, y):
        return ((net(w, "net", x) - y) ** 2).mean()

    def of(w, prefix):
        return [w[n] for n in sorted(w) if n.startswith(prefix)]

    def simple(optimizers, clip=None):
        def steps(w):
            made = optimizers(w)
            trained = [p for o in made for g in o.param_groups for p in g["params"]]
            for step in range(STEPS):
                loss = loss_of(w, samples(3, step), samples(2, 2 * step))
                grads = torch.autograd.grad(loss, trained)
                for p, d in zip(trained, grads):
                    p.grad = d
                told = [loss.item()]
                if clip:
                    told.append(torch.nn.utils.clip_grad_norm_(trained, clip).item())
                for o in made:
                    o.step()
                yield told
        return steps

    def accumulation(w):
        trained = of(w, "net/")
        optimizer = torch.optim.Adam(trained, lr=0.05)
        for step in range(STEPS):
            told = []
            loss = loss_of(w, samples(3, step), samples(2, 2 * step))
            told.append(loss.item())
            (loss / 4).backward()
            if step % 4 == 3:
                told.append(loss.item())  # fetched of the same variables once more
                optimizer.step()
                optimizer.zero_grad()
            yield told

    def own_optimizer(w):
        trained = of(w, "net/")
        moments = [torch.zeros_like(p) for p in trained]
        for step in range(STEPS):
            loss = loss_of(w, samples(3, step), samples(2, 2 * step))
            grads = torch.autograd.grad(loss, trained)
            with torch.no_grad():
                for p, m, d in zip(trained, moments, grads):
                    p.copy_(p * (1 - 0.01 * 0.1) - torch.sign(m * 0.9 + d * 0.1) * 0.01)
                    m.copy_(m * 0.99 + d * 0.01)
            yield [loss.item()]

    def gan(w):
        judge, generator = of(w, "judge/"), of(w, "generator/")
        of_judge = torch.optim.Adam(judge, lr=0.01, betas=(0.5, 0.999))
        of_generator = torch.optim.Adam(generator, lr=0.02, betas=(0.5, 0.999))
        for step in range(STEPS):
            x, y = samples(3, step), samples(2, 2 * step)
            told = []
            for which, optimizer in ((0, of_judge), (1, of_generator)):
                made = net(w, "generator", x)
                losses = (softplus(-net(w, "judge", y)).mean() + softplus(net(w, "judge", made)).mean(),
                          softplus(-net(w, "judge", made)).mean())
                told += [l.item() for l in losses]
                for o in (of_judge, of_generator):
                    o.zero_grad()
                losses[which].backward()
                optimizer.step()
            yield told

    T = torch.optim
    loops = {
        "frozen": simple(lambda w: [T.SGD(of(w, "net/two"), lr=0.1, momentum=0.9)]),
        "groups": simple(lambda w: [T.AdamW(of(w, "net/one"), lr=0.02, weight_decay=0.1), T.SGD(of(w, "net/two"), lr=0.3)]),
        "clipping": simple(lambda w: [T.SGD(of(w, "net/"), lr=0.5)], clip=0.25),
        "average_of_weights": simple(lambda w: [T.Adam(of(w, "net/"), lr=0.05)]),
        "accumulation": accumulation, "own_optimizer": own_optimizer, "gan": gan,
    }
    worst = 0.0
    print(f"{STEPS} steps, torch {torch.__version__}: largest difference of losses, of weights")
    for name, steps in loops.items():
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([program, name, str(STEPS), folder], capture_output=True, text=True, check=True)
            w = load(os.path.join(folder, "begin.safetensors"), torch)
            end = load(os.path.join(folder, "end.safetensors"), torch)
        for n in w:
            w[n].requires_grad_(n.startswith(("net/", "judge/", "generator/")))
        ours = [[float(x) for x in line.split()] for line in done.stdout.splitlines()]
        theirs = list(steps(w))
        assert [len(a) for a in ours] == [len(b) for b in theirs], name
        losses = max(abs(a - b) / max(abs(b), 1e-3) for x, y in zip(ours, theirs) for a, b in zip(x, y))
        trained = [n for n in w if w[n].requires_grad]
        weights = max(((end[n] - w[n]).abs().max() / w[n].abs().max()).item() for n in trained)
        worst = max(worst, losses, weights)
        print(f"  {name:20} {losses:.1e}  {weights:.1e}")
    return 1 if worst > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
