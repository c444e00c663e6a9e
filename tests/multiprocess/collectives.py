#!/usr/bin/env python3
"""Collectives that a program calls: the same bits over any number of nodes, also when ranks die: collectives.py BIN_FOLDER"""

import signal
import sys

import harness


class collectives(harness.cluster_test):
    lease = None  # processes are stopped

    def setUp(self):
        super().setUp()
        self.data = self.make_data(samples=240, test_samples=24)

    def flags(self, workers, *more, epochs=6):
        return ["--workers", workers, "--epochs", epochs, "--data", self.data, *more]

    def finish(self, *arguments):
        p = self.run_program("collective_calls", *arguments)
        self.assertEqual(p.code, 0, p.tail())
        return self.json_of(p)

    def test_over_nodes_they_have_the_bits_of_one_process(self):
        self.start_nodes(3)
        for workers in (2, 3, 4):  # 4: two of them share a node
            wanted = self.finish(*self.flags(workers))
            for more in ((), ("--allreduce",), ("--shards", 2)):
                got = self.finish(*self.flags(workers, *more, "--cluster", self.cluster, *(("--resume",) if workers > 3 else ())))
                self.assertEqual(got["weights_hash"], wanted["weights_hash"], (workers, more))
                self.assertEqual(got["losses"], wanted["losses"])

    def test_64_at_once_over_two_nodes_with_a_thread_each(self):
        self.start_nodes(2, "--threads", 1)
        without = self.finish(*self.flags(2, "--cluster", self.cluster))
        got = self.finish(*self.flags(2, "--many", 64, "--cluster", self.cluster))
        self.assertEqual(got["weights_hash"], without["weights_hash"])
        print(f"64 collectives at once: {got['losses']} steps in {got['seconds']} s, without them {without['seconds']} s", file=sys.stderr)

    # It is named, and with resume the others go on without it.
    def test_a_rank_that_dies_or_stands_still_is_named(self):
        for how in (signal.SIGKILL, signal.SIGSTOP):
            self.start_nodes(3 - sum(n.is_running() for n in self.nodes))
            job = f"job{how.value}"
            training = self.start("collective_calls", *self.flags(2, "--resume", "--cluster", self.cluster, "--name", job, epochs=harness.ENDLESS))
            self.until_step(training, job, 30)
            victim = self.node_of(job, "worker/1/")
            victim.send(how)
            training.line(f"pid {victim.pid}", "err")
            if how == signal.SIGSTOP:
                victim.send(signal.SIGKILL)
            victim.wait()
            self.goes_on_for(training, job)
            steps = self.end_in_good_order(training, job)
            wanted = self.finish(*self.flags(2), "--steps", steps)["weights_hash"]
            self.assertEqual(self.json_of(training)["weights_hash"], wanted, training.tail())

    def test_without_resume_the_job_ends_with_the_name(self):
        self.start_nodes(2)
        training = self.start("collective_calls", *self.flags(2, "--cluster", self.cluster, "--name", "job", epochs=harness.ENDLESS))
        self.until_step(training, "job", 30)
        victim = self.node_of("job", "worker/1/")
        victim.send(signal.SIGKILL)
        self.assertEqual(training.wait(), 1, training.tail())
        self.assertIn(f"pid {victim.pid}", training.err)


if __name__ == "__main__":
    harness.main()
