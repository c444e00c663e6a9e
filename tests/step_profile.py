#!/usr/bin/env python3
"""Where the time of a training step goes, by kind of op: step_profile.py BIN [--data DIR] [--seconds 3]

Trains each model on one thread of a node, records a timeline, and prints the shares of the stream's time as a table. BIN: the folder with the
programs; DIR: Fashion-MNIST. Not one of the tests that CI runs.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time

MODELS = {
    "MLP, batch 128": ("train_classifier", "--epochs", "1000"),
    "MLP, batch 1": ("train_classifier", "--epochs", "1000", "--batch", "1"),
    "CNN, batch 128": ("train_classifier", "--model", "cnn", "--epochs", "100"),
    "language model": ("train_language_model", "--steps", "100000"),
}
OTHERS = 0.01  # what takes less is summed up


def record(bin_folder, run_folder, arguments, seconds, of_node=()):
    environment = dict(os.environ, XDG_RUNTIME_DIR=run_folder)
    binary = lambda name: os.path.join(bin_folder, name)
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    started = [subprocess.Popen([binary("troupe-node"), "--cluster", "profile", *of_node], **quiet)]
    try:
        time.sleep(1)
        started.append(subprocess.Popen([binary(arguments[0]), *arguments[1:], "--cluster", "profile"], **quiet))
        time.sleep(4)
        told = subprocess.run([binary("troupe"), "--cluster", "profile", "timeline", "--seconds", str(seconds)], env=environment, capture_output=True, check=True)
    finally:
        for p in reversed(started):
            p.terminate()
            p.wait()
    return json.loads(told.stdout)["traceEvents"]


def shares(events):
    """Of the busiest stream: kind of op (a group by its first op) -> share of the time recorded."""
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("ph") == "M" and e["name"] == "thread_name"}
    by_lane = collections.defaultdict(collections.Counter)
    for e in events:
        if e.get("ph") != "X" or not lanes.get((e["pid"], e["tid"]), "").startswith("cpu:"):
            continue
        kind = e.get("args", {}).get("type")
        head = kind.split("+")[0] if kind else "waiting" if e["name"] == "waiting" else e["name"]
        if e.get("cat") == "wait":
            head = "waiting"
        by_lane[(e["pid"], e["tid"])][head] += e["dur"]
    taken = max(by_lane.values(), key=lambda lane: sum(d for kind, d in lane.items() if kind != "waiting"))
    total = sum(taken.values())
    return {kind: d / total for kind, d in taken.most_common()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--data")
    parser.add_argument("--seconds", type=int, default=3)
    a = parser.parse_args()
    for model, arguments in MODELS.items():
        if arguments[0] == "train_classifier":
            if not a.data:
                print(f"{model}: skipped, since it needs --data", file=sys.stderr)
                continue
            arguments = (*arguments, "--data", a.data)
        with tempfile.TemporaryDirectory(prefix="troupe-profile-") as folder:
            all_shares = shares(record(a.bin, folder, arguments, a.seconds))
        rest = sum(share for share in all_shares.values() if share < OTHERS)
        print(f"\n{model}\n\n| op | % |\n|---|---|")
        for kind, share in all_shares.items():
            if share >= OTHERS:
                print(f"| {kind} | {100 * share:.0f} |")
        print(f"| others | {100 * rest:.0f} |")


if __name__ == "__main__":
    main()
