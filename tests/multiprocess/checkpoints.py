#!/usr/bin/env python3
"""A program dies, or its disk fails, at one operation on its checkpoints, and --resume goes on: checkpoints.py BIN_FOLDER

TROUPE_DISK_OPERATIONS=all: at each of them, one after the other; without it, at some that a seed draws.
"""

import glob
import os
import random
import re
import shutil

import harness

SOME = 5
FINE, FAILED = 0, 1


class checkpoints(harness.cluster_test):
    def setUp(self):
        super().setUp()
        self.saved = self.path("checkpoints")
        self.flags = ["--data", self.make_data(300, 100), "--epochs", 12, "--json", "--checkpoint", self.saved, "--checkpoint-every", 10]
        p = self.with_fault(0, "none")
        self.assertEqual(p.code, FINE, p.tail())
        self.wanted, self.operations = self.json_of(p)["weights_hash"], self.log()
        self.assertGreater(len(self.operations), 50)

    def log(self):
        with open(self.path("log")) as f:
            return f.read().splitlines()

    def with_fault(self, number, fault):
        """One run in an empty folder."""
        shutil.rmtree(self.saved, ignore_errors=True)
        if os.path.exists(self.path("log")):
            os.remove(self.path("log"))
        environment = self.environment
        self.environment = dict(environment, LD_PRELOAD=os.path.join(harness.BIN, "disk_fault.so"), DISK_FAULT=fault, DISK_FAULT_AT=str(number),
                                DISK_FAULT_FOLDER=self.saved, DISK_FAULT_LOG=self.path("log"))
        try:
            return self.run_program("train_classifier", *self.flags)
        finally:
            self.environment = environment

    def promised(self, operations):
        """The newest step whose manifest has its name, for good, after these."""
        newest = 0
        for i, line in enumerate(operations):
            if found := re.match(r"rename (.*/step-0*(\d+)\.epoch-\d+)/manifest\.json$", line):
                if f"sync {found.group(1)}" in operations[i:]:
                    newest = int(found.group(2))
        return newest

    def goes_on(self, number, fault, done):
        """--resume begins with what was promised, or newer, and the bits are those of the undisturbed run."""
        newest = self.promised(done)
        whole = [m for m in glob.glob(os.path.join(self.saved, "classifier", "step-*", "manifest.json"))]
        if whole:
            self.tool("checkpoint", "verify", self.saved)
        p = self.run_program("train_classifier", *self.flags, "--resume")
        self.assertEqual(p.code, FINE, p.tail())
        self.assertEqual(self.json_of(p)["weights_hash"], self.wanted, p.tail())
        begun = re.search(r"goes on with the checkpoint of step (\d+)", p.err)
        self.assertGreaterEqual(int(begun.group(1)) if begun else 0, newest, f"{fault} at operation {number}, {done[-1:]}: {newest} was promised\n{p.tail()}")

    def numbers(self, kind=""):
        every = [i + 1 for i, line in enumerate(self.operations) if line.startswith(kind)]
        if os.environ.get("TROUPE_DISK_OPERATIONS") == "all":
            return every
        return sorted(random.Random(int(os.environ.get("TROUPE_SEED", "1"))).sample(every, SOME))

    def test_a_program_that_is_killed_at_any_operation_goes_on(self):
        for number in self.numbers():
            with self.subTest(number, operation=self.operations[number - 1]):
                p = self.with_fault(number, "kill")
                self.assertEqual(p.code, -9, p.tail())
                self.goes_on(number, "kill", self.log()[:-1])

    def test_a_program_that_is_killed_within_a_write_goes_on(self):
        for number in self.numbers("write"):
            with self.subTest(number, operation=self.operations[number - 1]):
                p = self.with_fault(number, "torn")
                self.assertEqual(p.code, -9, p.tail())
                self.goes_on(number, "torn", self.log()[:-1])

    def test_a_disk_that_fails_once_costs_one_checkpoint_and_no_step(self):
        for fault in ("EIO", "ENOSPC"):
            for number in self.numbers():
                with self.subTest(number, fault=fault, operation=self.operations[number - 1]):
                    p = self.with_fault(number, fault)
                    self.assertIn(p.code, (FINE, FAILED), p.tail())
                    if not p.out:  # refused before its first step: one line, and nothing is lost
                        self.assertEqual(len(p.lines["err"]), 1, p.tail())
                        self.assertLess(self.promised(self.log()), 10, p.tail())
                        continue
                    self.assertEqual(self.json_of(p)["weights_hash"], self.wanted, p.tail())
                    if p.code == FAILED:
                        self.assertIn("its last checkpoint was not written", p.err)
                    self.goes_on(number, fault, self.log()[:number - 1])


if __name__ == "__main__":
    harness.main()
