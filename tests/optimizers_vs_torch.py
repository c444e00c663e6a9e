#!/usr/bin/env python3
"""Steps of every optimizer beside those of torch.optim, from equal values with equal gradients. Not run by ctest: it needs torch.

    optimizers_vs_torch.py [BIN_FOLDER]     prints the largest relative difference of each, exits 1 if one is above 1e-5

Two measures: of the values after every step, the largest difference over the largest value; and of the way that the values went, that is
without what both began with.
"""

import os
import struct
import subprocess
import sys

STEPS, ELEMENTS, LIMIT = 100, 10007, 1e-5

# Type, fields of optimizer_spec, torch's class and arguments.
CASES = [
    ("sgd", {"learning_rate": 0.05}, "SGD", {"lr": 0.05}),
    ("sgd", {"learning_rate": 0.05, "momentum": 0.9}, "SGD", {"lr": 0.05, "momentum": 0.9}),
    ("sgd", {"learning_rate": 0.05, "momentum": 0.9, "nesterov": 1, "weight_decay": 0.01}, "SGD",
     {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("adam", {}, "Adam", {"lr": 1e-3}),
    ("adam", {"learning_rate": 0.01, "beta1": 0.3, "beta2": 0.95, "epsilon": 1e-6, "weight_decay": 0.1}, "Adam",
     {"lr": 0.01, "betas": (0.3, 0.95), "eps": 1e-6, "weight_decay": 0.1}),
    ("adamw", {}, "AdamW", {"lr": 1e-3}),
    ("adamw", {"learning_rate": 0.01, "weight_decay": 0.5}, "AdamW", {"lr": 0.01, "weight_decay": 0.5}),
    ("rmsprop", {}, "RMSprop", {}),
    ("rmsprop", {"momentum": 0.9, "alpha": 0.9}, "RMSprop", {"momentum": 0.9, "alpha": 0.9}),
    ("rmsprop", {"centered": 1, "momentum": 0.5, "weight_decay": 0.01}, "RMSprop", {"centered": True, "momentum": 0.5, "weight_decay": 0.01}),
    ("adagrad", {}, "Adagrad", {}),
    ("adagrad", {"learning_rate": 0.1, "learning_rate_decay": 0.01, "initial_accumulator": 0.5, "weight_decay": 0.1}, "Adagrad",
     {"lr": 0.1, "lr_decay": 0.01, "initial_accumulator_value": 0.5, "weight_decay": 0.1}),
]


def main():
    try:
        import torch
    except ImportError:
        print("optimizers_vs_torch.py: there is no torch here (Debian: python3-torch, with /usr/bin/python3)", file=sys.stderr)
        return 77
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = os.path.join(sys.argv[1] if len(sys.argv) > 1 else os.path.join(root, "build", "bin"), "optimizer_steps")
    torch.set_num_threads(1)
    worst = 0.0
    print(f"{STEPS} steps, {ELEMENTS} elements, torch {torch.__version__}: largest relative difference of values, of their way")
    for number, (kind, fields, name, arguments) in enumerate(CASES):
        torch.manual_seed(number)
        start = torch.randn(ELEMENTS)
        # Of all sizes, some zero.
        gradients = torch.randn(STEPS, ELEMENTS) * torch.exp(3 * torch.randn(ELEMENTS)) * (torch.rand(STEPS, ELEMENTS) > 0.1)
        flat = start.tolist() + gradients.flatten().tolist()
        done = subprocess.run([program, kind, str(ELEMENTS), str(STEPS), *(f"{k}={v}" for k, v in fields.items())],
                              input=struct.pack(f"<{len(flat)}f", *flat), capture_output=True, check=True)
        ours = torch.frombuffer(bytearray(done.stdout), dtype=torch.float32).reshape(STEPS, ELEMENTS)
        w = torch.nn.Parameter(start.clone())
        optimizer = getattr(torch.optim, name)([w], **arguments)
        values, ways = 0.0, 0.0
        for step in range(STEPS):
            w.grad = gradients[step].clone()
            optimizer.step()
            theirs = w.detach()
            difference = (ours[step] - theirs).abs().max()
            values = max(values, float(difference / theirs.abs().max()))
            ways = max(ways, float((ours[step] - theirs).norm() / (theirs - start).norm()))
        worst = max(worst, values)
        text = ", ".join(f"{k} {v}" for k, v in fields.items()) or "defaults"
        print(f"{kind:8} {values:9.2e} {ways:9.2e}   {text}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
