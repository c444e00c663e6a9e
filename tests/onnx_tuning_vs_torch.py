#!/usr/bin/env python3
"""An ONNX model tuned by tune_onnx beside the same module tuned by torch, over equal data. Not run by ctest: it needs torch.

    onnx_tuning_vs_torch.py [BIN_FOLDER]    prints the largest differences, exits 1 if one is above 1e-5

The file of each model is written here from the module's weights. Then, for each optimizer and set of tuned layers:

  losses     of 50 steps, relative
  weights    after them, over the largest one of their variable
  outputs    of torch with the weights that tune_onnx saved, beside torch's own; over the largest one
  onnx_run   of a file with the saved weights, beside torch with the same; over the largest one

"from safetensors": the model's file has other weights, and tune_onnx starts from a file of torch's.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "multiprocess"))

import onnx_run  # noqa: E402  writes models and arrays

TRAINED, HELD, BATCH, EPOCHS, LIMIT = 320, 40, 32, 5, 1e-5  # 50 steps


def numbers(t):
    return t.detach().reshape(-1).tolist()


def model_file(module, shape):
    """Linear, Conv2d, Tanh, ReLU and Flatten, in a row, with the names that torch gives weights."""
    import torch
    nodes, weights, x = [], {}, "x"
    for name, layer in module.named_children():
        y, kind = f"after_{name}", type(layer)
        mine = [f"{name}.{n}" for n, _ in layer.named_parameters()]
        weights |= {f"{name}.{n}": (list(p.shape), numbers(p)) for n, p in layer.named_parameters()}
        op = {torch.nn.Linear: "Gemm", torch.nn.Conv2d: "Conv", torch.nn.Tanh: "Tanh", torch.nn.ReLU: "Relu", torch.nn.Flatten: "Flatten"}[kind]
        nodes.append(onnx_run.node(op, [x, *mine], [y], **({"transB": 1} if op == "Gemm" else {})))
        x = y
    out = module(torch.zeros(1, *shape)).shape[1]
    nodes.append(onnx_run.node("Identity", [x], ["y"]))
    return onnx_run.model(nodes, [onnx_run.port("x", ["N", *shape])], [onnx_run.port("y", ["N", out])], weights=weights)


def safetensors(named):
    head, data = {}, b""
    for name, t in named.items():
        piece = struct.pack(f"<{t.numel()}f", *numbers(t))
        head[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def load(path):
    import torch
    try:
        from safetensors.torch import load_file  # the format's own reader, where it is installed
        return load_file(path), "the package safetensors"
    except ImportError:
        pass
    with open(path, "rb") as f:
        length = struct.unpack("<Q", f.read(8))[0]
        head, data = json.loads(f.read(length)), f.read()
    return {name: torch.frombuffer(bytearray(data[slice(*e["data_offsets"])]), dtype=torch.float32).reshape(e["shape"])
            for name, e in head.items() if name != "__metadata__"}, "this script"


def main():
    try:
        import torch
    except ImportError:
        print("onnx_tuning_vs_torch.py: there is no torch here (Debian: python3-torch, with /usr/bin/python3)", file=sys.stderr)
        return 77
    torch.set_num_threads(1)
    bin_folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build", "bin")
    nn = torch.nn
    modules = {  # rows, module, classes (0: regression)
        "perceptron": ((8,), lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)), 3),
        "convolution": ((2, 6, 6), lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)), 4),
        "regression": ((8,), lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)), 0),
    }
    optimizers = {"adam": lambda p: torch.optim.Adam(p, lr=1e-2), "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9)}
    worst, reader = 0.0, ""

    def relative(a, b):
        return ((a - b).abs().max() / b.abs().max()).item()

    def run(program, *arguments):
        done = subprocess.run([os.path.join(bin_folder, program), *map(str, arguments)], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{program} ended with {done.returncode}: {done.stderr}")

    print(f"{EPOCHS * TRAINED // BATCH} steps, torch {torch.__version__}: largest difference of losses, weights, outputs, onnx_run")
    for name, (shape, make, classes) in modules.items():
        for how, optimizer in optimizers.items():
            for begin in ("from the model", "from safetensors"):
                torch.manual_seed(3)
                module, other = make(), make()
                x = torch.rand(TRAINED + HELD, *shape) * 2 - 1
                flat = x.reshape(len(x), -1)
                y = (flat @ torch.rand(flat.shape[1], classes)).argmax(1) if classes else torch.sin(flat[:, :2] * 3)
                # The last layer alone, or (from safetensors) all.
                last = [n for n, _ in module.named_parameters()][-2:]
                tuned = last if begin == "from the model" else [n for n, _ in module.named_parameters()]
                with tempfile.TemporaryDirectory() as folder:
                    def write(file, data):
                        path = os.path.join(folder, file)
                        with open(path, "wb") as f:
                            f.write(data)
                        return path

                    files = ["--x", write("x.npy", onnx_run.array(x.shape, numbers(x))),
                             "--y", write("y.npy", onnx_run.array(y.shape, numbers(y), kind="<i8" if classes else "<f4"))]
                    if begin == "from the model":
                        at = [write("m.onnx", model_file(module, shape))]
                    else:
                        at = [write("m.onnx", model_file(other, shape)), "--from", write("from", safetensors(dict(module.named_parameters())))]
                    saved, told = os.path.join(folder, "saved"), os.path.join(folder, "losses")
                    run("tune_onnx", *at, *files, "--tune", ",".join(tuned), "--no-shuffle", "--batch", BATCH, "--epochs", EPOCHS, "--optimizer", how,
                        "--learning-rate", 1e-2, "--hold-back", HELD / len(x) + 1e-9, "--save", saved, "--losses", told)
                    with open(told) as f:
                        ours = torch.tensor([float(line.split(",")[1]) for line in f])
                    weights, reader = load(saved)

                    theirs = []
                    for n, p in module.named_parameters():
                        p.requires_grad_(n in tuned)
                    steps = optimizer([p for p in module.parameters() if p.requires_grad])
                    criterion = nn.CrossEntropyLoss() if classes else nn.MSELoss()
                    for _ in range(EPOCHS):
                        for i in range(0, TRAINED, BATCH):
                            loss = criterion(module(x[i:i + BATCH]), y[i:i + BATCH])
                            steps.zero_grad()
                            loss.backward()
                            steps.step()
                            theirs.append(loss.item())
                    theirs = torch.tensor(theirs)
                    assert len(ours) == len(theirs), (len(ours), len(theirs))
                    loaded = make()
                    loaded.load_state_dict(weights)
                    held = x[TRAINED:]
                    out = loaded(held).detach()
                    # What tune_onnx saved, as a model again.
                    run("onnx_run", write("again.onnx", model_file(loaded, shape)), "--input", write("held.npy", onnx_run.array(held.shape, numbers(held))),
                        "--output", folder)
                    again = torch.tensor(onnx_run.elements_of(os.path.join(folder, "y.npy"))[1]).reshape(out.shape)
                    figures = (((ours - theirs).abs() / theirs.abs()).max().item(),
                               max(relative(weights[n], p.detach()) for n, p in module.named_parameters()),
                               relative(out, module(held).detach()), relative(again, out))
                worst = max(worst, *figures)
                print(f"  {name:12} {how:5} {begin:17}" + "".join(f"  {f:.1e}" for f in figures))
    print(f"safetensors were read by {reader}")
    return 1 if worst > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
