#!/usr/bin/env python3
"""Every example gives the same bits for any threads, credits, passes and nodes: bit_equality.py BIN_FOLDER

Threads 1, 2, 4, x credits 1, 2, 8, x groups on, off, x each pass of the compiler left out, x one process or three nodes: 216 ways for each
program. A few of them, chosen by a seed, each time; all with TROUPE_MATRIX=all.
"""

import itertools
import json
import os
import random
import struct
import sys
from array import array

import harness

PASSES = ("", "fold", "simplify", "share", "share_memory", "spread", "pack_pushes", "order_reads", "order_pushes")
COMMON = ("--workers", "2", "--shards", "2")
PROGRAMS = {
    "perceptron": ("train_classifier", "--batch", "100", "--epochs", "1", "--optimizer", "adam"),
    "towers": ("train_towers", "--towers", "3", "--batch", "70", "--epochs", "1"),
    "cnn": ("train_classifier", "--model", "cnn", "--batch", "40", "--epochs", "1"),
    "language_model": ("train_language_model", "--steps", "3", "--batch", "4", "--context", "32", "--layers", "2", "--width", "64", "--dropout", "0.1", "--clip-global-norm", "1"),
    "language_model_of_odd_shapes": ("train_language_model", "--steps", "2", "--batch", "5", "--context", "103", "--layers", "1", "--width", "64", "--heads", "2"),
    "embedding": ("train_embedding", "--steps", "10"),
    "own_op": ("train_own_op", "--steps", "10"),
    "from_threads": ("train_from_threads", "--steps", "20", "--update", "sync"),
}


def variables(path):
    """Of a safetensors file of f32: a dict of arrays."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    return {name: array("f", data[e["data_offsets"][0]:e["data_offsets"][1]]) for name, e in header.items() if name != "__metadata__"}


class bit_equality(harness.cluster_test):
    def setUp(self):
        super().setUp()
        self.images = self.make_data(samples=200, test_samples=40)

    def arguments(self, name):
        return (*PROGRAMS[name], *(("--data", self.images) if PROGRAMS[name][0] in ("train_classifier", "train_towers") else ()), *COMMON)

    def hash_of(self, *arguments):
        p = self.run_program(*arguments, "--json")
        self.assertEqual(p.code, 0, f"{' '.join(map(str, arguments))}\n{p.tail()}")
        self.programs.remove(p)
        return self.json_of(p)["weights_hash"]

    def test_every_way_gives_the_same_bits(self):
        is_all = os.environ.get("TROUPE_MATRIX") == "all"
        clusters = {}
        for threads in ("1", "2", "4") if is_all else ("2",):
            clusters[threads] = self.cluster = f"{self.cluster}{threads}"
            self.nodes = []
            self.start_nodes(3, "--threads", threads, "--load", os.path.join(harness.BIN, "libown_ops.so"))
        for name in PROGRAMS:
            first = self.hash_of(*self.arguments(name), "--threads", "1", "--credits", "1")
            ways = list(itertools.product(("1", "2", "4"), ("1", "2", "8"), ("on", "off"), PASSES, (False, True)))
            if not is_all:
                drawn = random.Random(name)
                ways = drawn.sample([w for w in ways if not w[4]], 3) + drawn.sample([w for w in ways if w[4] and w[0] in clusters], 3)
            apart = 0
            for threads, credits, fuse, without, is_cluster in ways:
                how = ("--credits", credits, "--fuse", fuse, *(("--without", without) if without else ()),
                       *(("--cluster", clusters[threads]) if is_cluster else ("--threads", threads)))
                got = self.hash_of(*self.arguments(name), *how)
                apart += got != first
                with self.subTest(program=name, how=how):
                    self.assertEqual(got, first)
            print(f"{name}: {len(ways)} ways, {apart} of them with other bits than one thread", file=sys.stderr)

    def test_fast_differs_by_rounding_alone(self):
        for program in (("train_classifier", "--model", "cnn", "--batch", "200", "--epochs", "1", "--data", self.images), ("train_language_model", "--steps", "1")):
            saved = []
            for more in ((), ("--fast",)):
                self.hash_of(*program, "--optimizer", "sgd", "--save", self.path("saved"), *more)
                saved.append(variables(self.path("saved")))
            worst = max(max(abs(a - b) for a, b in zip(exact, saved[1][v])) / max(map(abs, exact)) for v, exact in saved[0].items())
            print(f"{program[0]}: --fast differs by {worst:.1e} of a variable's largest element after one step", file=sys.stderr)
            self.assertLessEqual(worst, 1e-6)


if __name__ == "__main__":
    harness.main()
