#!/usr/bin/env python3
"""The models of apps/ learn, and are the same bit for bit in one process and over nodes: models.py BIN_FOLDER"""

import os
import signal

import harness


class models(harness.cluster_test):
    def finish(self, name, *arguments):
        p = self.run_program(name, *arguments, "--json")
        self.assertEqual(p.code, 0, f"{name} {' '.join(map(str, arguments))}\n{p.tail()}")
        return self.json_of(p)

    def test_threads_feed_workers_here_and_on_nodes(self):
        self.start_nodes(2)
        model = ("--steps", "500", "--batch", "32", "--workers", "2", "--update", "sync")
        alone = self.finish("train_from_threads", *model)
        self.assertGreater(alone["test_accuracy"], 0.9)
        for more in (("--threads", "1"), ("--fuse", "off", "--credits", "5"), ("--cluster", self.cluster), ("--cluster", self.cluster, "--shards", "2")):
            self.assertEqual(self.finish("train_from_threads", *model, *more)["weights_hash"], alone["weights_hash"], more)
        for more in ((), ("--cluster", self.cluster)):
            together = self.finish("train_from_threads", "--steps", "500", "--batch", "32", *more, *(("--workers", "2") if more else ()))
            self.assertEqual(together["applied"], 500 * together["workers"])
            self.assertEqual(together["dropped"], 0)
            self.assertGreater(together["test_accuracy"], 0.9)

    def test_threads_feed_again_what_a_loss_takes_away(self):
        model = ("--steps", "6000", "--batch", "32", "--workers", "2", "--update", "sync", "--json")
        alone = self.finish("train_from_threads", *model[:-1])
        nodes = self.start_nodes(3)
        p = self.start("train_from_threads", *model, "--cluster", self.cluster, "--lease", "30s", "--on-failure", "resume")
        for step, node in ((100, nodes[1]), (400, nodes[0])):
            self.until_step(p, "spirals", step)
            os.kill(node.pid, signal.SIGKILL)
        self.assertEqual(p.wait(), 0, p.tail())
        told = self.json_of(p)
        self.assertEqual((told["weights_hash"], told["recoveries"]), (alone["weights_hash"], 2), p.tail())

    def test_numbers_that_are_none_are_said_left_out_or_end_it(self):
        self.start_nodes(2)
        # The rate makes the second step's values overflow.
        model = ("--data", self.make_data(samples=200), "--batch", "20", "--epochs", "1", "--workers", "2", "--learning-rate", "1e30")
        for more in ((), ("--cluster", self.cluster)):
            stopped = self.run_program("train_classifier", *model, "--on-nan", "stop", *more)
            self.assertEqual(stopped.code, 1, stopped.tail())
            self.assertRegex(stopped.err, r"worker/[01]/.*step [12]: .*train_classifier\.cpp:\d+: it gives (nan|-?inf), element \d+ of f32", stopped.tail())
            warned = self.run_program("train_classifier", *model, "--on-nan", "warn", *more)
            self.assertEqual(warned.code, 0, warned.tail())
            self.assertRegex(warned.err, r"it gives (nan|-?inf), element \d+", warned.tail())
        hashes = set()
        for more in ((), ("--threads", "2"), ("--cluster", self.cluster), ("--cluster", self.cluster, "--shards", "2", "--on-failure", "resume", "--replicas", "1")):
            done = self.finish("train_classifier", *model, "--on-nan", "skip", *more)
            self.assertEqual((done["applied"], done["dropped"]), (2, 8), more)  # the first of five steps of each worker counts, and no other
            hashes.add(done["weights_hash"])
        self.assertEqual(len(hashes), 1)

    def test_halves_learn_the_same_and_are_the_same_over_nodes(self):
        self.start_nodes(3)
        data = ("--data", self.make_data(samples=600), "--batch", "20", "--epochs", "1")
        exact = self.finish("train_classifier", "--model", "cnn", *data)
        for precision in (("--precision", "bf16"), ("--precision", "f16"), ("--precision", "f16", "--loss-scale", "1024")):
            half = self.finish("train_classifier", "--model", "cnn", *data, *precision)
            self.assertNotEqual(half["weights_hash"], exact["weights_hash"])
            self.assertGreater(half["test_accuracy"], exact["test_accuracy"] - 0.1, precision)
            hashes = set()
            for more in ((), ("--threads", "3"), ("--cluster", self.cluster), ("--cluster", self.cluster, "--update", "allreduce"),
                         ("--cluster", self.cluster, "--shards", "2", "--on-failure", "resume", "--replicas", "1")):
                hashes.add(self.finish("train_classifier", *data, *precision, "--workers", "2", *more)["weights_hash"])
            self.assertEqual(len(hashes), 1, precision)
        self.finish("train_language_model", "--steps", "3", "--batch", "4", "--context", "32", "--layers", "2", "--width", "64", "--precision", "f16", "--clip-global-norm", "1")
        self.finish("train_embedding", "--steps", "10", "--precision", "f16", "--update", "async")
        keep = ("--checkpoint", self.path("cuts"), "--name", "job")
        self.finish("train_classifier", *data, "--precision", "f16", *keep)
        p = self.run_program("train_classifier", *data[:-1], "2", "--precision", "bf16", *keep, "--resume")
        self.assertEqual(p.code, 2, p.tail())
        self.assertIn("precision: the checkpoint was made with f16, this run has bf16", p.err)

    def losses(self, path):
        with open(path) as f:
            return [float(line.split(",")[1]) for line in f]

    def compare(self, name, *arguments):
        """One process, and two workers over three nodes: the JSON line of the first."""
        losses = self.path(name + ".csv")
        common = (*arguments, "--workers", "2", "--shards", "2", "--losses", losses)
        alone = self.finish(name, *common)
        of_alone = self.losses(losses)
        self.assertLess(sum(of_alone[-5:]) / 5, 0.9 * sum(of_alone[:5]) / 5, "it does not learn")
        over_nodes = self.finish(name, *common, "--cluster", self.cluster)
        self.assertEqual(self.losses(losses), of_alone)
        self.assertEqual(over_nodes["weights_hash"], alone["weights_hash"])
        return alone

    def test_every_model_learns_and_is_the_same_over_nodes(self):
        self.start_nodes(3)
        text = self.path("text")
        with open(text, "w") as f:
            f.write("the quick brown fox jumps over the lazy dog. " * 50)
        self.compare("train_classifier", "--model", "cnn", "--data", self.make_data(samples=600), "--batch", "20", "--epochs", "1")
        fast = [self.finish("train_classifier", "--model", "cnn", "--data", self.make_data(samples=600), "--batch", "20", "--epochs", "1", "--fast", "--threads", n)["weights_hash"]
                for n in (1, 2, 4)]
        self.assertEqual(len(set(fast)), 1)
        model = ("--text", text, "--context", "16", "--width", "16", "--layers", "2", "--heads", "2", "--batch", "4", "--steps", "40",
                 "--learning-rate", "0.01")
        still = self.compare("train_language_model", *model)
        shaken = self.compare("train_language_model", *model, "--dropout", "0.1")
        self.assertNotEqual(still["weights_hash"], shaken["weights_hash"])
        rows = self.compare("train_embedding", "--text", text, "--steps", "60")
        whole = self.finish("train_embedding", "--text", text, "--steps", "60", "--workers", "2", "--shards", "2", "--pushes", "whole")
        self.assertEqual(whole["weights_hash"], rows["weights_hash"])

    def test_what_they_learn_without_a_text_are_documents(self):
        done = self.finish("train_embedding", "--steps", "20")
        self.assertEqual(done["steps"], 20)
        self.assertGreater(done["tokens_per_second"], 0)

    def test_mistakes_are_told(self):
        cases = ((("train_language_model", "--text", self.path("none")), 6, "none"),
                 (("train_language_model", "--heads", "3"), 2, "--heads 3 does not divide --width 128"),
                 (("train_language_model", "--width", "0"), 2, "--width"),
                 (("train_embedding", "--context", "1"), 2, "a pair needs 2 bytes"),
                 (("train_from_threads", "--on-failure", "resume", "--checkpoint", self.path("cuts"), "--outlive"), 2, "--outlive needs"),
                 (("train_classifier", "--precision", "fp16"), 2, "--precision"),
                 (("train_classifier", "--loss-scale", "much"), 2, "must be 'dynamic' or a number"),
                 (("train_classifier", "--loss-scale", "0"), 2, "must be a number above 0"),
                 (("train_classifier", "--precision", "f16", "--on-nan", "stop"), 2, "use ignore, warn or skip"),
                 (("train_classifier", "--model", "tree"), 2, "--model"))
        for command, code, says in cases:
            p = self.run_program(*command)
            self.assertEqual(p.code, code, f"{command}\n{p.tail()}")
            self.assertIn(says, p.err)
        short = self.path("short")
        with open(short, "w") as f:
            f.write("too short")
        p = self.run_program("train_language_model", "--text", short)
        self.assertEqual(p.code, 2, p.tail())
        self.assertIn("has 9 bytes, but pieces of 128 and one more byte", p.err)


if __name__ == "__main__":
    harness.main()
