#!/usr/bin/env python3
"""train_language_model beside the same model in torch: same initial weights, same pieces of text, same optimizer.

    language_model_vs_torch.py BIN [--steps 50] [--rounds 3] [--sdpa]      BIN: the folder with train_language_model

--sdpa: torch's scaled_dot_product_attention in place of products and softmax.

Prints losses of both and their largest difference, then tokens/s of both, in turns, on one thread. Needs torch; not one of the tests
that CI runs. Exits 1 where a loss differs by more than 1e-3.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F

LAYERS, WIDTH, HEADS, CONTEXT, BATCH, RATE = 4, 128, 4, 128, 16, 1e-3
MASK = (1 << 64) - 1


def piece(seed, step, place, places):
    """devices/files/text_file.cpp: where a piece of text begins."""
    z = (seed * 0xD1342543DE82EF95 + step * 0x9E3779B97F4A7C15 + (place + 1) * 0xBF58476D1CE4E5B9) & MASK
    for _ in range(2):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
    return z % places


def load_safetensors(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = torch.from_numpy(np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"]).copy())
    return tensors


class model:
    def __init__(self, weights, sdpa):
        self.sdpa = sdpa
        self.w = {name: t.clone().requires_grad_() for name, t in weights.items()}
        self.mask = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)

    def dense(self, x, name):
        return x @ self.w[name + "/weights"] + self.w[name + "/bias"]

    def norm(self, x, name):
        return F.layer_norm(x, (WIDTH,), self.w[name + "/scale"], self.w[name + "/shift"])

    def logits(self, tokens):
        x = F.embedding(tokens, self.w["bytes/table"]) + self.w["places"]
        for i in range(1, LAYERS + 1):
            b = f"block_{i}/"
            q, k, v = (t.view(BATCH, CONTEXT, HEADS, -1).transpose(1, 2)
                       for t in self.dense(self.norm(x, b + "norm_1"), b + "attention/projection").split(WIDTH, 2))
            if self.sdpa:
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                mixed = (q @ k.transpose(2, 3) / (WIDTH / HEADS) ** 0.5 + self.mask).softmax(-1) @ v
            x = x + self.dense(mixed.transpose(1, 2).reshape(BATCH, CONTEXT, WIDTH), b + "attention/output")
            x = x + self.dense(F.gelu(self.dense(self.norm(x, b + "norm_2"), b + "dense_1")), b + "dense_2")
        return self.dense(self.norm(x, "norm"), "logits")


def train(weights, text, steps, sdpa):
    net = model(weights, sdpa)
    optimizer = torch.optim.AdamW(net.w.values(), lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses, began = [], time.perf_counter()
    for step in range(steps):
        starts = [piece(1, step, i, len(text) - CONTEXT) for i in range(BATCH)]
        pieces = torch.from_numpy(np.stack([text[s:s + CONTEXT + 1] for s in starts]).astype(np.int64))
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net.logits(pieces[:, :-1]).reshape(-1, 256), pieces[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, steps * BATCH * CONTEXT / (time.perf_counter() - began)


def ours(program, folder, text, steps, rate=RATE, save=None):
    losses = os.path.join(folder, "losses")
    command = [program, "--text", text, "--steps", str(steps), "--learning-rate", str(rate), "--losses", losses, "--json"]
    command += ["--save", save] if save else []
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    with open(losses) as file:
        return [float(line.split(",")[1]) for line in file], answer["tokens_per_second"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sdpa", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(1)
    program = os.path.join(a.bin, "train_language_model")
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text")
        with open(text, "wb") as out:
            for name in ("README.md", "CHANGELOG.md", "runtime/README.md", "actors/README.md"):
                out.write(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", name), "rb").read())
        content = np.frombuffer(open(text, "rb").read(), np.uint8)
        initial = os.path.join(folder, "initial.safetensors")
        ours(program, folder, text, 1, rate=0, save=initial)
        weights = load_safetensors(initial)
        apart, rates = 0, ([], [])
        for _ in range(a.rounds):
            mine, rate = ours(program, folder, text, a.steps)
            rates[0].append(rate)
            theirs, rate = train(weights, content, a.steps, a.sdpa)
            rates[1].append(rate)
            apart = max(apart, max(abs(x - y) for x, y in zip(mine, theirs)))
        print(f"loss after {a.steps} steps: troupe {mine[-1]:.6f}, torch {theirs[-1]:.6f}; largest difference of any step {apart:.2e}")
        print(f"tokens/s, {a.rounds} rounds in turns: troupe {statistics.median(rates[0]):.0f} {sorted(round(r) for r in rates[0])}, "
              f"torch {torch.__version__} {statistics.median(rates[1]):.0f} {sorted(round(r) for r in rates[1])}, "
              f"ratio {statistics.median(x / y for x, y in zip(*rates)):.2f}")
        return 0 if apart <= 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
