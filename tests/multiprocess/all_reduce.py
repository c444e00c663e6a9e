#!/usr/bin/env python3
"""Gradients that nodes add up among themselves: the same bits, also after ranks are killed or stopped in the middle: all_reduce.py BIN_FOLDER

TROUPE_DEATHS=50 kills and stops so many ranks, each in a training of its own, and prints how long the others took to name them.
"""

import glob
import os
import re
import signal
import statistics
import time

import harness

DEATHS = int(os.environ.get("TROUPE_DEATHS", "2"))


class all_reduce(harness.cluster_test):
    lease = None  # processes are stopped

    def setUp(self):
        super().setUp()
        self.data = self.make_data()

    def flags(self, workers, *more, epochs=harness.ENDLESS):
        return ["--workers", workers, "--epochs", epochs, "--data", self.data, "--json", *more]

    def hash_alone(self, workers, *more, epochs=harness.ENDLESS):
        return self.json_of(self.train_alone(*self.flags(workers, *more, epochs=epochs)))["weights_hash"]

    def test_it_gives_the_bits_of_shards_and_of_one_process(self):
        self.start_nodes(3)
        for more in ((), ("--optimizer", "adam", "--clip-norm", "0.5"), ("--model", "cnn", "--batch", "32")):
            epochs = 1 if "cnn" in more else 4
            wanted = self.hash_alone(3, *more, epochs=epochs)
            for how in (("--update", "allreduce"), ("--update", "allreduce", "--shards", "3"), ("--update", "sync", "--shards", "2")):
                result = self.json_of(self.train(*self.flags(3, *more, *how, epochs=epochs)))
                self.assertEqual(result["weights_hash"], wanted, (more, how))
                self.assertEqual(result["update"], how[1])
                self.assertEqual(result["applied"], 3 * result["steps"])

    def test_several_workers_of_one_node_are_parts_of_one_rank(self):
        wanted = self.hash_alone(3, epochs=4)
        self.start_nodes(2)
        result = self.json_of(self.train(*self.flags(3, "--update", "allreduce", "--on-failure", "resume", epochs=4)))
        self.assertEqual(result["weights_hash"], wanted)

    def test_every_node_has_the_whole_of_every_variable(self):
        self.start_nodes(2)
        training = self.start_training(*self.flags(2, "--update", "allreduce", "--name", "job"))
        self.until_step(training, "job", 10)
        names = {a["name"] for a in self.list("actors") if a.get("job") == "job"}
        ranks = sorted(n for n in names if n.startswith("all_reduce/"))
        self.assertIn("all_reduce/0/0", ranks)
        self.assertIn("all_reduce/0/1", ranks)
        self.assertTrue(any(n.startswith("copy/") for n in names), sorted(names))
        training.send(signal.SIGINT)
        training.wait()

    def goes_on_with_the_same_bits(self, k, how, took):
        self.start_nodes(3 - sum(n.is_running() for n in self.nodes))
        training = self.start_training(*self.flags(2, "--update", "allreduce", "--on-failure", "resume", "--name", f"job{k}"))
        self.until_step(training, f"job{k}", 20 + 7 * (k % 5))
        victim = self.node_of(f"job{k}", f"worker/{k // 2 % 2}/")
        began = time.monotonic()
        victim.send(how)
        self.assertIsNotNone(training.line(f"pid {victim.pid}", "err"), training.tail())
        took.append(time.monotonic() - began)
        if how == signal.SIGSTOP:
            victim.send(signal.SIGKILL)
        victim.wait()
        self.goes_on_for(training, f"job{k}")
        steps = self.end_in_good_order(training, f"job{k}")
        result = self.json_of(training)
        self.assertEqual(result["weights_hash"], self.hash_alone(2, "--steps", steps), training.tail())
        self.assertNotIn("back to step 0", training.err)  # each has a copy
        self.assertGreaterEqual(result["recoveries"], 1, training.tail())

    # Stopped and killed ranks, one after the other; the training goes on and has the bits of an undisturbed one.
    def test_ranks_that_die_or_stand_still_are_named_and_change_no_bit(self):
        took = {signal.SIGKILL: [], signal.SIGSTOP: []}
        for k, how in enumerate((signal.SIGKILL, signal.SIGSTOP) * DEATHS):
            self.goes_on_with_the_same_bits(k, how, took[how])
        for how, seconds in took.items():
            print(f"{how.name}: named after {statistics.median(seconds) * 1000:.0f} ms (at most {max(seconds) * 1000:.0f}), {len(seconds)} times")

    def test_without_recovery_a_dead_rank_ends_the_job_with_its_name(self):
        self.start_nodes(2)
        training = self.start_training(*self.flags(2, "--update", "allreduce", "--name", "job"))
        self.until_step(training, "job", 20)
        victim = self.node_of("job", "worker/1/")
        victim.send(signal.SIGKILL)
        victim.wait()
        self.assertEqual(training.wait(), 1, training.tail())
        self.assertRegex(training.err, f"the job failed: .*pid {victim.pid}")

    def test_why_names_the_rank_that_others_wait_for(self):
        self.lease = "30s"  # it is asked while the node stands still, not once it is held dead
        self.start_nodes(2)
        training = self.start_training(*self.flags(2, "--update", "allreduce", "--name", "job"))
        self.until_step(training, "job", 20)
        victim = self.node_of("job", "worker/1/")
        victim.send(signal.SIGSTOP)
        try:
            self.until("why names the node that stands still", lambda: str(victim.pid) in self.tool("why", "job", codes=(0, 1, 4, 6)) or not training.is_running())
            self.assertTrue(training.is_running(), training.tail())
        finally:
            victim.send(signal.SIGCONT)
        training.send(signal.SIGINT)
        training.wait()

    def test_a_program_goes_on_from_a_checkpoint_on_other_nodes(self):
        self.start_nodes(2)
        keep = ["--update", "allreduce", "--checkpoint", self.path("checkpoints"), "--on-failure", "resume", "--name", "job"]
        training = self.start_training(*self.flags(2, *keep, "--checkpoint-every", 10))
        self.until_step(training, "job", 60)
        training.send(signal.SIGKILL)
        training.wait()
        for node in self.nodes:
            node.send(signal.SIGKILL)
            node.wait()
        self.start_nodes(2)
        again = self.start_training(*self.flags(2, *keep, "--resume"))
        self.until_step(again, "job", 80)
        steps = self.end_in_good_order(again, "job")
        self.assertEqual(self.json_of(again)["weights_hash"], self.hash_alone(2, "--steps", steps))

    # One worker sets the mark, and both nodes have variables to save. How many are written is up to the machine.
    def test_checkpoints_are_written_that_time_and_people_ask_for(self):
        self.start_nodes(2)
        for name, more in (("timed", ["--checkpoint-every", "200ms"]), ("asked", [])):
            training = self.start_training(*self.flags(2, "--update", "allreduce", "--shards", 2, "--name", name, "--checkpoint", self.path("checkpoints"), *more))
            self.until_step(training, name, 10)
            if more:
                self.until("a checkpoint is there", lambda: glob.glob(self.path(f"checkpoints/{name}/step-*/manifest.json")) or not training.is_running())
            else:
                self.assertIn("new checkpoint", self.tool("checkpoint", "make", name))
            self.assertTrue(training.is_running(), training.tail())
            self.assertIn("whole", self.tool("checkpoint", "verify", self.path(f"checkpoints/{name}")))
            training.send(signal.SIGINT)
            training.wait()

    def test_what_it_cannot_do_is_refused_in_one_line(self):
        for more, what in ((("--replicas", "1", "--on-failure", "resume", "--cluster", "x"), "copy of each variable"), (("--on-nan", "skip"), "leaves gradients out")):
            p = self.run_program("train_classifier", "--update", "allreduce", *more)
            self.assertEqual(p.wait(), 2)
            self.assertTrue(re.search(what, p.err), p.err)
            self.assertEqual(len(p.err.strip().splitlines()), 1)


class among_devices(harness.cluster_test):
    """The same with gradients that are added up on the nodes' devices: stand-ins on the host, whose collectives meet by sockets."""

    lease = None  # processes are stopped

    DEVICE = ("--update", "allreduce", "--device", "gpu:0")

    def setUp(self):
        super().setUp()
        self.data = self.make_data()

    def flags(self, workers, *more, epochs=harness.ENDLESS):
        return ["--workers", workers, "--epochs", epochs, "--data", self.data, "--json", *more]

    def bits_alone(self, workers, *more, epochs):
        return self.json_of(self.train_alone(*self.flags(workers, *more, epochs=epochs)))["weights_hash"]

    def test_it_gives_the_bits_of_shards_on_the_host(self):
        self.start_nodes(3, "--gpus", "host:1")
        for workers, more in ((2, ()), (3, ("--optimizer", "adam", "--clip-norm", "0.5"))):
            wanted = self.bits_alone(workers, *more, epochs=4)
            for how in ((), ("--without", "device_collectives")):
                result = self.json_of(self.train(*self.flags(workers, *self.DEVICE, *more, *how, epochs=4)))
                self.assertEqual(result["weights_hash"], wanted, (workers, more, how))
                self.assertEqual(result["applied"], workers * result["steps"])

    # In turn killed and stopped, in the middle of a training and as soon as it is there, when ranks still look for each other.
    def test_a_rank_that_dies_ends_the_job_with_its_name_and_the_others_are_fit_for_the_next(self):
        wanted = self.bits_alone(2, epochs=4)
        for k in range(max(4, 2 * DEATHS)):
            how = (signal.SIGKILL, signal.SIGSTOP)[k % 2]
            self.start_nodes(3 - sum(n.is_running() for n in self.nodes), "--gpus", "host:1")
            name = f"job{k}"
            training = self.start_training(*self.flags(3, *self.DEVICE, "--name", name))
            if k % 4 < 2:
                self.until_step(training, name, 20)
            victim = self.node_of(name, f"worker/{k % 3}/")
            victim.send(how)
            self.assertEqual(training.wait(), 1, training.tail())
            line = training.err.strip().splitlines()[-1]
            self.assertRegex(line, f"job {name} failed: .*pid {victim.pid}")
            self.assertIn("died", line)
            if how == signal.SIGSTOP:
                victim.send(signal.SIGKILL)
            victim.wait()
            self.until("the parts of the job have ended", lambda: not self.running_parts(name))
            result = self.json_of(self.train(*self.flags(2, *self.DEVICE, epochs=4)))
            self.assertEqual(result["weights_hash"], wanted, (k, how))

    def test_a_node_without_the_device_is_named(self):
        self.start_nodes(1, "--gpus", "host:1")
        self.start_nodes(1, "--gpus", "none")
        p = self.start_training(*self.flags(2, *self.DEVICE, epochs=1))
        self.assertEqual(p.wait(), 2, p.tail())
        self.assertRegex(p.err, "to run on gpu:0.* has no device")


if __name__ == "__main__":
    harness.main()
