#!/usr/bin/env python3
"""Trainings that a pipeline feeds, whose samples other nodes may make: pictures.py BIN_FOLDER"""

import glob
import os
import signal

import harness
from far_pipelines import library
from pipelines import png

USAGE, NOT_FOUND = 2, 6
CLASSES = 3
FILES = 20  # of each class


class pictures(harness.cluster_test):
    def setUp(self):
        super().setUp()
        for c in range(CLASSES):
            os.makedirs(self.path(f"pictures/{c}"))
            for i in range(FILES):
                with open(self.path(f"pictures/{c}/{i:02}.png"), "wb") as f:
                    f.write(png([(i * 37 + 90 * (c == k)) % 200 for k in range(3)], side=24))

    def arguments(self, *more, epochs=4, batch=10):
        return (self.path("pictures"), "--epochs", epochs, "--batch", batch, "--side", 16, "--json", *more)

    def train_on(self, *more, code=0, **how):
        p = self.run_program("train_on_pictures", *self.arguments(*more, **how))
        self.assertEqual(p.code, code, p.tail())
        return p

    def losses(self, p, steps, name="losses.csv"):
        """The loss of each step, which are there once and in order, and the hash of the weights."""
        with open(self.path(name)) as f:
            rows = [line.strip().split(",") for line in f]
        self.assertEqual([int(step) for step, _ in rows], list(steps), p.tail())
        return [loss for _, loss in rows], self.json_of(p)["weights_hash"]

    def alone(self, *more, steps=24, **how):
        return self.losses(self.train_on("--losses", self.path("losses.csv"), *more, **how), range(steps))

    def test_samples_are_a_function_of_seed_and_step(self):
        expected = self.alone()
        self.assertEqual(self.alone("--decoders", 1), expected)
        self.assertEqual(self.alone("--decoders", 5, "--cache", "1MiB"), expected)
        # A third of the pictures fits: 16 x 16 x 3 floats.
        self.assertEqual(self.alone("--cache", "64KiB"), expected)
        self.assertNotEqual(self.alone("--seed", 2), expected)
        p = self.train_on("--update", "async", "--workers", 2)
        self.assertEqual(self.json_of(p)["applied"], 24)

    def test_a_checkpoint_goes_on_with_the_samples_behind_it(self):
        epochs, steps = 2000, 6000
        expected = self.alone("--workers", 2, steps=steps, epochs=epochs)
        folder = self.path("checkpoints")
        how = ("--workers", 2, "--on-failure", "resume", "--checkpoint", folder, "--checkpoint-every", 50, "--name", "p")
        p = self.start("train_on_pictures", *self.arguments(*how, epochs=epochs))
        self.until("a checkpoint", lambda: glob.glob(os.path.join(folder, "p", "step-*", "manifest.json")), pause=0.01)
        self.assertTrue(p.is_running(), p.tail())
        os.kill(p.pid, signal.SIGKILL)
        p.wait()
        p = self.train_on(*how, "--resume", "--losses", self.path("rest.csv"), epochs=epochs)
        with open(self.path("rest.csv")) as f:
            begun = int(f.readline().split(",")[0])
        self.assertGreater(begun, 0)
        rest, weights = self.losses(p, range(begun, steps), "rest.csv")
        self.assertEqual((rest, weights), (expected[0][begun:], expected[1]))

    def test_nodes_make_samples_and_die(self):
        expected = self.alone("--workers", 2, steps=600, epochs=200)
        nodes = [self.start_node("--job", "worker", "--name", f"n{i + 1}", "--load", library("picture_stages")) for i in range(4)]
        self.wait_nodes(4)
        p = self.start("train_on_pictures", *self.arguments(
            "--workers", 2, "--cluster", self.cluster, "--lease", "30s", "--decode-on", "/job:worker", "--decoders", 3, "--on-failure", "resume",
            "--name", "p", "--losses", self.path("far.csv"), epochs=200))
        for step, node in ((20, nodes[0]), (100, nodes[3]), (180, nodes[1])):
            self.until_step(p, "p", step)
            os.kill(node.pid, signal.SIGKILL)
        self.assertEqual(p.wait(), 0, p.tail())
        self.assertEqual(self.losses(p, range(600), "far.csv"), expected)

    def test_a_batch_of_18_on_any_number_of_nodes(self):
        workers = ("--workers", 6)
        alone = self.train_on(*workers, "--losses", self.path("losses.csv"), epochs=300, batch=3)
        expected = self.losses(alone, range(1000))
        nodes = []

        def come(count):
            for _ in range(count):
                nodes.append(self.start_node("--job", "worker", "--load", library("picture_stages")))

        come(1)
        self.wait_nodes(1)
        p = self.start("train_on_pictures", *self.arguments(
            *workers, "--cluster", self.cluster, "--lease", "30s", "--decode-on", "/job:worker", "--on-failure", "resume", "--name", "p",
            "--losses", self.path("far.csv"), epochs=300, batch=3))
        for step, wanted in ((50, 7), (200, 4), (350, 5), (500, 2)):  # from 1 on
            self.until_step(p, "p", step)
            come(max(0, wanted - len(nodes)))
            while len(nodes) > wanted:
                os.kill(nodes.pop(0).pid, signal.SIGKILL)
            self.wait_nodes(wanted)
        self.assertEqual(p.wait(), 0, p.tail())
        self.assertEqual(self.losses(p, range(1000), "far.csv"), expected)
        self.assertGreaterEqual(self.json_of(p)["recoveries"], 2)  # of the kills

    def test_nodes_for_data_take_no_part_of_the_training(self):
        expected = self.alone("--workers", 2, steps=12)
        for name in ("d1", "d2"):
            self.start_node("--job", "data", "--name", name, "--load", library("picture_stages"))
        self.wait_nodes(2)
        far = ("--cluster", self.cluster, "--lease", "30s", "--decode-on", "/job:data", "--workers", 2)
        self.assertIn("no node takes trainings", self.train_on(*far, code=USAGE).err)
        for name in ("w1", "w2"):
            self.start_node("--name", name)
        self.wait_nodes(4)
        p = self.start("train_on_pictures", *self.arguments(*far, "--name", "p", "--losses", self.path("far.csv"), epochs=harness.ENDLESS))
        self.until_step(p, "p", 1)
        at = {a["node"]: set() for a in self.list("actors")}
        for a in self.list("actors"):
            if a["state"] != "ended":
                at.setdefault(a["node"], set()).add(a["kind"])
        self.assertEqual({name for name, kinds in at.items() if "stage" in kinds} & {"d1", "d2", "w1", "w2"}, {"d1", "d2"})
        self.assertEqual({name for name, kinds in at.items() if "shard" in kinds or "op" in kinds} & {"d1", "d2"}, set())
        p.send(signal.SIGINT)
        self.assertEqual(p.wait(), 130, p.tail())
        near = self.train_on(*far, "--losses", self.path("far.csv"))
        self.assertEqual(self.losses(near, range(12), "far.csv"), expected)
        jobs = {j["name"]: j["state"] for j in self.list("jobs")}
        self.assertNotEqual(jobs.get("pictures/pictures"), "failed", jobs)

    def test_what_is_wrong_is_said(self):
        p = self.run_program("train_on_pictures", self.path("nothing"))
        self.assertEqual(p.code, NOT_FOUND, p.tail())
        os.makedirs(self.path("empty/class"))
        p = self.run_program("train_on_pictures", self.path("empty"))
        self.assertEqual((p.code, "which are the classes" in p.err), (NOT_FOUND, True), p.tail())
        p = self.train_on("--cache", "1MiB", "--decode-on", "/job:worker", code=USAGE)
        self.assertIn("leave --decode-on out", p.err)
        bad = self.path("pictures/1/30.png")
        with open(bad, "wb") as f:
            f.write(b"no picture")
        p = self.train_on(code=USAGE)  # of a file that is wrong
        self.assertIn(bad, p.err)
        self.assertIn("load_sample", p.err)


if __name__ == "__main__":
    harness.main()
