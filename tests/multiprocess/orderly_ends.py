#!/usr/bin/env python3
"""What ends a training from outside: signals, readers that go away, limits, numbers that are none: orderly_ends.py BIN_FOLDER"""

import glob
import json
import os
import random
import re
import resource
import signal
import subprocess
import time

import harness

FINE, FAILED = 0, 1
STEPS_OF_EPOCH = 3  # alone


class orderly_ends(harness.cluster_test):
    def setUp(self):
        super().setUp()
        self.data = self.make_data(300, 100)
        self.saved = self.path("checkpoints")

    def flags(self, *more, folder=True, epochs=harness.ENDLESS):
        keep = ["--checkpoint", self.saved] if folder else []
        return ["--data", self.data, "--epochs", epochs, "--json", *keep, *more]

    def losses(self, name):
        """Steps and losses of a file of --losses."""
        with open(self.path(name)) as f:
            return [line.split(",") for line in f.read().splitlines()]

    def begins(self, training, name="losses"):
        """Until it has made some steps: its losses stand in a file, in blocks, which the test before has removed."""
        self.until("there are losses", lambda: os.path.exists(self.path(name)) and os.path.getsize(self.path(name)) > 0 or not training.is_running())
        self.assertTrue(training.is_running(), training.tail())

    def suspended_at(self, p, number):
        self.assertEqual(p.wait(), 128 + number, p.tail())
        said = re.search(r"^train_classifier: job classifier was suspended at step (\d+): .*; the same command with --resume goes on from there$", p.err, re.M)
        self.assertIsNotNone(said, p.tail())
        return int(said.group(1))

    def goes_on(self, start, step, *how):
        """--resume begins at the step, behind the last loss that was told, and comes to the bits of an undisturbed training."""
        self.assertEqual([int(s) for s, _ in self.losses("losses")], list(range(step)))
        epochs = step // 2 + 20  # of 2 or 3 steps
        ended = []
        for p in (start(*self.flags("--resume", "--losses", self.path("rest"), *how, epochs=epochs)),
                  start(*self.flags("--losses", self.path("whole"), *how, "--name", "whole", epochs=epochs, folder=False))):
            self.assertEqual(p.wait(), FINE, p.tail())
            ended.append(p)
        self.assertIn(f"goes on with the checkpoint of step {step}", ended[0].err)
        self.assertEqual(*(self.json_of(p)["weights_hash"] for p in ended))
        self.assertEqual(self.losses("losses") + self.losses("rest"), self.losses("whole"))

    def alone(self, *flags):
        return self.start("train_classifier", *flags)

    def test_a_training_with_checkpoints_is_suspended_by_a_signal_and_goes_on_from_exactly_there(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                self.saved = self.path(f"checkpoints-{number}")
                p = self.alone(*self.flags("--losses", self.path("losses")))
                self.begins(p)
                p.send(number)
                self.goes_on(self.alone, self.suspended_at(p, number))
                os.remove(self.path("losses"))

    def test_over_nodes_it_is_suspended_and_they_go_on(self):
        self.start_nodes(2)
        for update in ("sync", "allreduce"):
            with self.subTest(update):
                self.saved = self.path(f"checkpoints-{update}")
                how = ["--workers", 2, "--shards", 2, "--update", update]
                p = self.start_training(*self.flags("--losses", self.path("losses"), *how))
                self.begins(p)
                p.send(signal.SIGTERM)
                step = self.suspended_at(p, signal.SIGTERM)
                self.until("nodes know that it was suspended", lambda: (self.job("classifier") or {}).get("state") == "suspended")
                self.assertRegex(self.tool("why", "classifier"), rf"suspended .* at step {step}")
                self.assertEqual(self.running_parts("classifier"), [])
                self.goes_on(self.start_training, step, *how)
                os.remove(self.path("losses"))
        for node in self.nodes:
            self.assertTrue(node.is_running(), node.tail())

    def test_signals_at_random_moments_of_many_lives_lose_nothing(self):
        """As a batch system does it: the same command again and again. TROUPE_SIGNALS says how often (default 4), TROUPE_SEED when."""
        self.start_nodes(2)
        moments = random.Random(int(os.environ.get("TROUPE_SEED", "1")))
        how = ["--workers", 2, "--shards", 2]
        told, made = [], 0
        for life in range(int(os.environ.get("TROUPE_SIGNALS", "4"))):
            resume = ["--resume"] if os.path.isdir(os.path.join(self.saved, "classifier")) else []
            p = self.start_training(*self.flags("--losses", self.path(f"losses-{life}"), *how, *resume))
            time.sleep(moments.uniform(0.02, 1.2))
            p.send(signal.SIGTERM)
            # Before it has begun to listen for signals, that one ends it.
            self.assertIn(p.wait(), (128 + signal.SIGTERM, -signal.SIGTERM), p.tail())
            said = re.search(r"was suspended at step (\d+): ", p.err)
            if os.path.exists(self.path(f"losses-{life}")):
                told += self.losses(f"losses-{life}")
            if said:
                made = int(said.group(1))
            # It has told each step that it keeps, and keeps each step that it has told.
            self.assertEqual([int(s) for s, _ in told], list(range(made)), p.tail())
        ended = []
        for more in (["--resume"] if made else [], ["--name", "whole"]):
            p = self.start_training(*self.flags("--losses", self.path("rest" if not ended else "whole"), *how, *more, epochs=made // 2 + 20,
                                                folder=not ended))
            self.assertEqual(p.wait(), FINE, p.tail())
            ended.append(p)
        self.assertEqual(*(self.json_of(p)["weights_hash"] for p in ended))
        self.assertEqual(told + self.losses("rest"), self.losses("whole"))

    def test_programs_that_feed_are_suspended_too(self):
        for update in ("sync", "async"):
            with self.subTest(update):
                how = ["--update", update, "--workers", 2, "--json"]
                saved = ["--checkpoint", self.path(update)]
                p = self.start("train_from_threads", *how, *saved, "--steps", 10 ** 9, "--losses", self.path("losses"))
                self.begins(p)
                p.send(signal.SIGTERM)
                self.assertEqual(p.wait(), 143, p.tail())
                self.assertRegex(p.err, "was suspended at step [0-9]+: .*--resume goes on from there")
                steps = len(self.losses("losses")) // (2 if update == "async" else 1) + 20
                done = self.run_program("train_from_threads", *how, *saved, "--steps", steps, "--resume")
                self.assertEqual(done.code, FINE, done.tail())
                self.assertIn("goes on with the checkpoint of step", done.err)
                if update == "sync":
                    whole = self.run_program("train_from_threads", *how, "--steps", steps)
                    self.assertEqual(self.json_of(done)["weights_hash"], self.json_of(whole)["weights_hash"])
                os.remove(self.path("losses"))

    def test_a_second_signal_ends_it_at_once_and_the_checkpoint_before_is_whole(self):
        node, = self.start_nodes(1)
        p = self.start_training("--data", self.data, "--epochs", harness.ENDLESS, "--checkpoint", self.saved, "--checkpoint-every", 5)
        self.until("there is a checkpoint", lambda: glob.glob(os.path.join(self.saved, "classifier", "step-*", "manifest.json")) or not p.is_running())
        node.send(signal.SIGSTOP)  # no checkpoint can be made now
        p.send(signal.SIGTERM)
        self.assertIsNotNone(p.line("is to be suspended at the step that it has got to: interrupted by SIGTERM", "err"), p.tail())
        p.send(signal.SIGTERM)
        self.assertEqual(p.wait(), 143, p.tail())
        self.assertRegex(p.err, "was stopped at step [0-9]+: interrupted by SIGTERM again; the same command with --resume goes on from the newest checkpoint")
        node.send(signal.SIGCONT)
        self.tool("checkpoint", "verify", self.saved)
        self.until("all parts of the job have ended", lambda: not self.running_parts("classifier"))

    def test_without_checkpoints_it_says_that_nothing_is_kept(self):
        p = self.start("train_classifier", *self.flags("--losses", self.path("losses"), folder=False))
        self.begins(p)
        p.send(signal.SIGTERM)
        self.assertEqual(p.wait(), 143, p.tail())
        self.assertRegex(p.err, "was stopped at step [0-9]+: interrupted by SIGTERM; nothing of it is kept: with --checkpoint DIR it would be")

    # --- writes that fail ---------------------------------------------------------------------------------------------

    def unread(self):
        """A pipe whose reader is gone."""
        reader, writer = os.pipe()
        os.close(reader)
        self.addCleanup(os.close, writer)
        return writer

    def run_with(self, name, *flags, **how):
        """With other streams, or other dispositions of signals, than programs have here."""
        return subprocess.run([os.path.join(harness.BIN, name), *map(str, flags)], env=self.environment, timeout=harness.HANG,
                              **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **how})

    def test_a_reader_that_goes_away_ends_no_training(self):
        whole = self.train_alone(*self.flags(folder=False, epochs=100))
        p = self.run_with("train_classifier", *self.flags(epochs=100), stderr=self.unread())
        self.assertEqual((p.returncode, json.loads(p.stdout)["weights_hash"]), (FINE, self.json_of(whole)["weights_hash"]))
        for which, flags in (("stdout", ()), ("losses", ("--losses", None))):
            with self.subTest(which):
                self.saved = self.path(which)
                writer = self.unread()
                flags = [f"/dev/fd/{writer}" if f is None else f for f in flags]
                how = {"stdout": writer} if which == "stdout" else {"pass_fds": (writer,)}
                p = self.run_with("train_classifier", *self.flags(*flags, epochs=100), **how)
                self.assertEqual(p.returncode, FAILED, p.stderr)
                self.assertEqual(p.stderr.count("Broken pipe"), 1 if which == "stdout" else p.stderr.count("--losses"), p.stderr)
                self.assertIn("Broken pipe", p.stderr)
                self.assertIn(f"step-{STEPS_OF_EPOCH * 100:012}", " ".join(os.listdir(os.path.join(self.saved, "classifier"))))

    def test_a_limit_of_file_sizes_is_an_error_that_names_the_file(self):
        def limited():
            resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
        p = self.run_with("train_classifier", *self.flags("--save", self.path("w.safetensors"), folder=False, epochs=1), preexec_fn=limited)
        self.assertEqual(p.returncode, FAILED, p.stderr)
        self.assertRegex(p.stderr, r"w\.safetensors.*: File too large")
        node = self.start("/bin/sh", "-c", 'ulimit -f 128; exec "$0" "$@"', os.path.abspath(os.path.join(harness.BIN, "troupe-node")), "--cluster", self.cluster)
        self.nodes.append(node)
        self.address(node)
        p = self.train(*self.flags(epochs=1), code=FAILED)
        self.assertRegex(p.err, r"the checkpoint of step [0-9]+ was not written: .*File too large")
        self.assertTrue(node.is_running(), node.tail())

    def test_a_signal_that_was_ignored_at_the_start_stays_ignored(self):
        def ignoring():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
        p = subprocess.Popen([os.path.join(harness.BIN, "train_classifier"), *map(str, self.flags("--losses", self.path("losses")))], env=self.environment,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=ignoring)
        size = lambda: os.path.exists(self.path("losses")) and os.path.getsize(self.path("losses"))
        try:
            self.until("there are losses", size)
            with open(f"/proc/{p.pid}/status") as f:
                ignored = int(re.search(r"^SigIgn:\s*(\w+)$", f.read(), re.M).group(1), 16)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
                self.assertTrue(ignored >> (number - 1) & 1, f"{number} in {ignored:x}")
                p.send_signal(number)
            before = size()
            self.until("it goes on", lambda: size() > before or p.poll() is not None)
            self.assertIsNone(p.poll())
        finally:
            p.kill()
            p.communicate()
        node = subprocess.Popen([os.path.join(harness.BIN, "troupe-node"), "--cluster", self.cluster, "--name", "deaf"], env=self.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=ignoring)
        try:
            self.assertIn("listening", node.stdout.readline())
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                node.send_signal(number)
            self.train("--data", self.data, "--epochs", 1)
            self.tool("cluster", "leave", "deaf")  # a tool still can
            self.assertEqual(node.wait(harness.HANG), FINE)
        finally:
            node.kill()
            node.communicate()

    # --- numbers that are none, nodes that come late, names that are no text ------------------------------------------

    def test_a_training_that_diverges_keeps_its_good_checkpoints_and_says_so(self):
        saved = lambda: sorted(os.listdir(os.path.join(self.saved, "classifier")))
        good = self.train_alone(*self.flags("--checkpoint-every", 5, epochs=5))
        kept = [f for f in saved() if f.startswith("step-")]
        self.assertEqual(self.json_of(good)["checkpoints_missing"], 0)
        p = self.train_alone(*self.flags("--checkpoint-every", 1, "--resume", "--rebatch", "--learning-rate", 1e30, epochs=20), code=FAILED)
        self.assertRegex(p.err, r"the loss of step [0-9]+ is -?(nan|inf)")
        self.assertEqual(len(re.findall("the loss of step", p.err)), 1, p.err)
        self.assertRegex(p.err, r"the checkpoint of step [0-9]+ was not written: .* has -?(nan|inf) \(its element [0-9]+\): the training has diverged")
        self.assertRegex(p.err, r"the training has diverged: .* has -?(nan|inf) ")
        lost = int(re.search(r"the checkpoint of step ([0-9]+) was not written", p.err).group(1))
        newest = [int(f.split("-")[1].split(".")[0]) for f in saved() if f.startswith("step-")]
        self.assertEqual(len(newest), len(kept))
        self.assertLess(max(newest), lost)
        self.tool("checkpoint", "verify", self.saved)

    def test_a_program_waits_for_as_many_nodes_as_it_needs(self):
        self.start_nodes(1)
        p = self.start_training("--data", self.data, "--epochs", 1, "--workers", 2, "--timeout", f"{harness.HANG:.0f}s")
        self.until("it is there", lambda: any(n["pid"] == p.pid for n in self.list("nodes")) or not p.is_running())
        self.assertTrue(p.is_running(), p.tail())
        self.start_node()
        self.assertEqual(p.wait(), FINE, p.tail())
        p = self.train("--data", self.data, "--epochs", 1, "--workers", 3, "--timeout", "100ms", code=2)
        self.assertIn("3 workers need as many nodes that take workers, but the cluster has 2", p.err)

    def test_a_path_that_is_no_text_is_printed_as_JSON(self):
        path = os.fsencode(self.folder.name) + b"/caf\xe9.graph"
        p = self.run_with("train_classifier", *self.flags(folder=False, epochs=1), "--save-graph", os.fsdecode(path), text=False)
        self.assertEqual(p.returncode, FINE, p.stderr)
        self.assertTrue(json.loads(p.stdout)["graph"].endswith("/caf\ufffd.graph"), p.stdout)
        self.assertTrue(os.path.exists(path))


if __name__ == "__main__":
    harness.main()
