#!/usr/bin/env python3
"""Graphs that programs save, and `troupe plan` on them and on files that are none: plans.py BIN_FOLDER"""

import json
import os
import random
import subprocess
import xml.dom.minidom

import harness


class plans(harness.cluster_test):
    def save(self, name, program, *arguments):
        path = self.path(name)
        p = self.run_program(program, *arguments, "--save-graph", path)
        self.assertEqual(p.code, 0, p.tail())
        self.assertIn(f"troupe plan {path}", p.out)
        return path

    def plan(self, path, *arguments, code=0):
        p = self.run_program("troupe", "plan", path, *arguments)
        self.assertEqual(p.code, code, f"troupe plan {path} {arguments}\n{p.tail()}")
        return p

    def refuses(self, path, code, *says):
        p = self.plan(path, code=code)
        self.assertEqual(p.out, "")
        self.assertEqual(len(p.lines["err"]), 1, p.err)
        self.assertTrue(p.err.startswith("troupe: "), p.err)
        for part in says:
            self.assertIn(part, p.err)
        return p.err

    def classifier(self, *arguments):
        return self.save("classifier.troupe", "train_classifier", "--data", self.make_data(300, 100), "--epochs", "1", "--batch", "50", *arguments)

    def test_every_program_saves_its_graph_and_every_form_of_its_plan_is_there(self):
        text = self.path("text")
        with open(text, "w") as f:
            f.write("the quick brown fox jumps over the lazy dog. " * 50)
        graphs = [self.classifier("--model", "cnn", "--optimizer", "adam"),
                  self.save("language.troupe", "train_language_model", "--text", text, "--layers", "2", "--width", "16", "--heads", "2", "--context", "16"),
                  self.save("table.troupe", "train_embedding", "--text", text)]
        for path in graphs:
            for more in ((), ("--nodes", "3", "--workers", "2", "--shards", "2"), ("--update", "async", "--fuse", "off")):
                told = self.plan(path, *more).out
                for part in ("passes", "where actors are, and why", "memory, at the bounds", "credits"):
                    self.assertIn(part, told)
                self.assertEqual("edges between tasks" in told, "--nodes" in more)
                self.assertTrue(self.plan(path, *more, "--dot").out.startswith("digraph troupe {"))
                xml.dom.minidom.parseString(self.plan(path, *more, "--svg").out)
                self.assertEqual(len(self.plan(path, *more, "--json").lines["out"]), 1)
        self.assertIn("adam; ", self.plan(graphs[0]).out)
        self.assertIn("is pushed by the rows", self.plan(graphs[2]).out)

    def test_the_plan_has_the_actors_of_the_training(self):
        data = ("--data", self.make_data(300, 100), "--epochs", "1", "--batch", "50", "--workers", "2", "--shards", "2")
        path = self.save("classifier.troupe", "train_classifier", *data)
        alone = json.loads(self.plan(path, "--json").out)
        self.assertEqual(len(alone["actors"]), self.json_of(self.train_alone(*data, "--json"))["actors"])
        self.start_nodes(3)
        over_nodes = json.loads(self.plan(path, "--nodes", "3", "--json").out)
        self.assertEqual(len(over_nodes["actors"]), self.json_of(self.train(*data, "--json"))["actors"])
        self.assertEqual([t["name"] for t in over_nodes["tasks"] if t["is_client"]], ["/job:client/task:0"])

    def test_the_same_graph_has_the_same_bytes_and_takes_the_place_of_a_graph_only(self):
        path = self.classifier()
        with open(path, "rb") as f:
            first = f.read()
        self.classifier()
        with open(path, "rb") as f:
            self.assertEqual(f.read(), first)
        notes = self.path("notes")
        with open(notes, "w") as f:
            f.write("dear diary")
        for target, code, says in ((notes, 2, "exists and is not a graph, so it is not overwritten"), (self.folder.name, 2, self.folder.name), (self.path("none/x"), 6, "none/x")):
            p = self.run_program("train_classifier", "--data", self.make_data(300, 100), "--save-graph", target)
            self.assertEqual(p.code, code, p.tail())
            self.assertIn(says, p.err)
        with open(notes) as f:
            self.assertEqual(f.read(), "dear diary")
        p = self.run_program("train_classifier", "--save-graph", path, "--save", self.path("w"))
        self.assertEqual((p.code, "nothing to write for --losses and --save" in p.err), (2, True), p.tail())

    def test_files_that_are_no_graphs_or_damaged_ones_are_told_in_a_line(self):
        path = self.classifier()
        with open(path, "rb") as f:
            good = f.read()
        bad = self.path("bad.troupe")

        def of(content):
            with open(bad, "wb") as f:
                f.write(content)
            return bad

        self.refuses(of(b""), 2, "bad.troupe", "not a graph")
        self.refuses(of(b"dear diary"), 2, "not a graph")
        self.refuses(of(good + b"\0"), 2, "damaged")
        self.refuses(of(good[:8] + b"\7" + good[9:]), 2, "version 7 of the format", "newer Troupe")
        draw = random.Random(7)
        for _ in range(12):
            self.refuses(of(good[:draw.randrange(len(good))]), 2)
            at = draw.randrange(len(good))
            self.refuses(of(good[:at] + bytes([good[at] ^ 1 << draw.randrange(8)]) + good[at + 1:]), 2)
            self.refuses(of(good[:32] + draw.randbytes(len(good) - 32)), 2)
        self.refuses(self.path("none"), 6, "none")
        self.refuses(self.folder.name, 2)
        os.mkfifo(self.path("pipe"))
        self.refuses(self.path("pipe"), 2)
        self.refuses("/dev/zero", 2)

    def test_ops_of_a_library_need_it(self):
        path = self.save("own.troupe", "train_own_op", "--steps", "2")
        self.refuses(path, 2, "is a swish_gate, of library own_ops", "which is not loaded", "train_own_op.cpp:")
        self.assertIn("swish_gate", self.plan(path, "--load", os.path.join(harness.BIN, "libown_ops.so")).out)
        self.assertIn("none.so", self.plan(path, "--load", self.path("none.so"), code=6).err)

    def test_a_plan_that_cannot_be_written_is_no_success(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([os.path.join(harness.BIN, "troupe"), "plan", self.classifier()], stdout=full, stderr=subprocess.PIPE, timeout=harness.HANG)
        self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    harness.main()
