#!/usr/bin/env python3
"""Ops of a user's own: loaded by nodes from a shared library, checked wherever a plan is placed: own_ops.py BIN_FOLDER"""

import json
import os
import shutil
import signal

import harness

USAGE, NOT_FOUND = 2, 6
LONG = 6000  # steps, which nodes come and go in
SMALL = ["--batch", 4, "--context", 16, "--width", 16]


def library(name):
    return os.path.join(harness.BIN, f"lib{name}.so")


class own_ops(harness.cluster_test):
    def text(self):
        path = self.path("text")
        with open(path, "w") as f:
            f.write("the quick brown fox jumps over the lazy dog. " * 100)
        return ["--text", path]

    def train_own(self, *arguments, code=0, steps=30):
        p = self.run_program("train_own_op", *self.text(), *SMALL, "--steps", steps, "--json", *arguments)
        self.assertEqual(p.code, code, p.tail())
        return p

    def hash_of(self, *arguments, steps=30):
        return json.loads(self.train_own(*arguments, steps=steps).out)["weights_hash"]

    def over_cluster(self):
        return ["--cluster", self.cluster, "--workers", 2, "--shards", 2]

    def refused(self, *arguments, code=USAGE):
        """The one line that the program ends with."""
        p = self.train_own(*arguments, code=code)
        self.assertEqual(len(p.lines["err"]), 1, p.tail())
        self.assertTrue(p.err.startswith("train_own_op: "), p.tail())
        self.assertEqual(p.out, "", p.tail())
        return p.err

    # --- the same op, wherever it runs ----------------------------------------------------------------------------------

    def test_one_process_and_a_cluster_give_the_same_bits(self):
        alone = self.hash_of("--workers", 2, "--shards", 2)
        self.assertEqual(self.hash_of("--workers", 2, "--shards", 2, "--load", library("own_ops")), alone)
        self.assertEqual(self.hash_of("--workers", 2, "--shards", 2, "--fuse", "off"), alone)
        self.assertNotEqual(self.hash_of("--workers", 2, "--shards", 2, "--beta", 0.5), alone)
        self.start_nodes(2, "--load", library("own_ops"))
        self.assertEqual(self.hash_of(*self.over_cluster()), alone)
        self.assertEqual(self.hash_of(*self.over_cluster(), "--load", library("own_ops")), alone)

    # Types of Troupe's that a library has a copy of, and an exception of the standard library, pass between it and the program.
    def test_an_elementwise_op_of_a_library_is_fused_with_those_of_troupe(self):
        alone = self.hash_of()
        self.assertEqual(self.hash_of("--load", library("odd_elementwise")), alone)
        self.assertEqual(self.hash_of("--load", library("odd_elementwise"), "--fuse", "off"), alone)
        # One actor for x * 0.5, the gate and their sum: the gate is its first op, or, element by element, one behind another.
        self.assertEqual(self.actors("--load", library("odd_elementwise")), self.actors())

    def actors(self, *arguments):
        return json.loads(self.train_own(*arguments).out)["actors"]

    def test_a_kernel_that_throws_fails_the_job_with_its_text(self):
        node = self.start_nodes(1, "--load", library("odd_kernel_throws"))[0]
        said = self.train_own("--cluster", self.cluster, code=1).lines["err"][-1]
        for part in ("the gate is shut", "swish_gate", self.name_of(node)):
            self.assertIn(part, said)
        self.assertTrue(node.is_running())

    def test_kernels_that_are_none_or_make_nothing_fail_the_job_and_no_node(self):
        for odd, says in (("odd_null_kernel", "no kernel was made for it"), ("odd_makes_nothing", "its kernel made nothing as output 0")):
            node = self.start_nodes(1, "--load", library(odd))[0]
            said = self.train_own("--cluster", self.cluster, "--fuse", "off", code=1).lines["err"][-1]
            for part in (says, "swish_gate", self.name_of(node)):
                self.assertIn(part, said)
            self.assertTrue(node.is_running())
            node.end()

    def test_it_learns(self):
        p = self.train_own("--learning-rate", 0.01, steps=400)
        self.assertLess(json.loads(p.out)["loss"], 2.0, p.tail())  # ln 256 = 5.5 at first

    # --- nodes that do not have it ----------------------------------------------------------------------------------------

    def test_a_node_without_it_is_refused_by_name(self):
        nodes = self.start_nodes(2)
        names = [self.name_of(n) for n in nodes]
        said = self.refused(*self.over_cluster())
        for part in ("'swish_gate'", "own_ops 1.0", "--load", *names):
            self.assertIn(part, said)
        self.assertTrue(all(n.is_running() for n in nodes))

    def test_another_version_is_refused(self):
        node = self.start_nodes(1, "--load", library("odd_other_version"))[0]
        said = self.refused("--cluster", self.cluster)
        for part in ("'swish_gate'", "needs library own_ops 1.0", f"{self.name_of(node)} has own_ops 2.0"):
            self.assertIn(part, said)
        self.assertIn("needs library own_ops 2.0", self.refused_the_other_way(node))

    def refused_the_other_way(self, node):
        node.send(signal.SIGKILL)
        node.wait()
        self.start_nodes(1, "--load", library("own_ops"))
        return self.refused("--cluster", self.cluster, "--load", library("odd_other_version"))

    # Members say names and versions; only the node itself knows that a library of that name lacks the op.
    def test_a_library_of_that_version_without_the_op_is_refused_by_the_node(self):
        node = self.start_nodes(1, "--load", library("odd_other_ops"))[0]
        said = self.refused("--cluster", self.cluster, code=1)
        for part in ("'swish_gate'", "own_ops 1.0", self.name_of(node), "without this op"):
            self.assertIn(part, said)
        self.assertTrue(node.is_running())

    def test_the_other_nodes_take_the_work_and_the_program_hears_of_it(self):
        alone = self.hash_of("--workers", 2, "--shards", 2)
        without = self.start_nodes(1)[0]
        self.start_nodes(2, "--load", library("own_ops"))
        p = self.train_own(*self.over_cluster())
        self.assertEqual(json.loads(p.out)["weights_hash"], alone)
        self.assertIn(f"{self.name_of(without)} has no library of that name", p.err)
        said = self.refused("--cluster", self.cluster, "--workers", 3)
        self.assertIn("3 workers", said)
        self.assertIn(f"left out: op 'swish_gate' needs library own_ops 1.0, and {self.name_of(without)} has no library", said)

    def test_a_recovery_gives_no_work_to_a_node_without_it(self):
        resume = ["--on-failure", "resume"]
        alone = self.hash_of("--workers", 2, "--shards", 2, *resume, steps=LONG)
        first, second = self.start_nodes(2, "--load", library("own_ops"))
        p = self.start("train_own_op", *self.text(), *SMALL, "--steps", LONG, "--json", *self.over_cluster(), *resume)
        self.until_step_of(p, 50)
        joined = self.start_nodes(1)[0]
        self.assertIsNotNone(p.line(f"gets no work: .* {self.name_of(joined)} has no library", "err"), p.tail())
        second.send(signal.SIGKILL)
        self.assertEqual(p.wait(), 0, p.tail())
        self.assertEqual(self.json_of(p)["weights_hash"], alone)
        self.assertGreater(self.json_of(p)["recoveries"], 0, p.tail())
        self.assertTrue(first.is_running() and joined.is_running())

    def until_step_of(self, training, step):
        def reached():
            self.assertTrue(training.is_running(), training.tail())
            job = self.job("own_op")
            return job and job["step"] >= step
        self.until(f"step {step}", reached)

    # --- what a node does not load ----------------------------------------------------------------------------------------

    def node_refuses(self, code, files, *parts):
        arguments = [a for f in files for a in ("--load", f)]
        p = self.run_program("troupe-node", "--cluster", self.cluster, *arguments)
        self.assertEqual(p.code, code, p.tail())
        self.assertEqual(len(p.lines["err"]), 1, p.tail())
        self.assertTrue(p.err.startswith("troupe-node: op library "), p.tail())
        for part in parts:
            self.assertIn(part, p.err)
        self.assertEqual(p.out, "", p.tail())

    def test_files_that_are_no_library_of_ops(self):
        text = self.path("text.so")
        with open(text, "w") as f:
            f.write("no library")
        cut = self.path("cut.so")
        with open(library("own_ops"), "rb") as whole, open(cut, "wb") as f:
            f.write(whole.read(4000))
        self.node_refuses(NOT_FOUND, [self.path("nowhere.so")], "nowhere.so", "no such file")
        self.node_refuses(USAGE, [self.folder.name], "not a regular file")
        self.node_refuses(USAGE, [text], "text.so", "cannot be loaded")
        self.node_refuses(USAGE, [cut], "cut.so", "a part of the file is missing")
        self.node_refuses(USAGE, [os.path.join(harness.BIN, "clock_jump.so")], "no troupe_op_library()")

    def test_libraries_that_do_not_fit(self):
        other = self.path("libcopy.so")
        shutil.copy(library("own_ops"), other)
        self.node_refuses(USAGE, [library("odd_other_abi")], "libodd_other_abi.so", "its ABI is")
        self.node_refuses(USAGE, [library("odd_throws")], "own_ops", "no such instruction set")
        self.node_refuses(USAGE, [library("odd_takes_a_name")], "op 'relu' is taken", "ships with Troupe")
        self.node_refuses(USAGE, [library("odd_no_kernel")], "op 'swish_gate' has no kernel")
        self.node_refuses(USAGE, [library("odd_no_name")], "libodd_no_name.so", "name")
        self.node_refuses(USAGE, [library("own_ops"), other], "a library of that name is there already, own_ops 1.0")

    def test_a_program_says_the_same(self):
        self.assertIn("there is no such file", self.refused("--load", self.path("nowhere.so"), code=NOT_FOUND))
        self.assertIn("its ABI is", self.refused("--load", library("odd_other_abi")))


if __name__ == "__main__":
    harness.main()
