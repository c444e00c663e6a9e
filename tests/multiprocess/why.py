#!/usr/bin/env python3
"""`troupe why` names the root of what does not go on: why.py BIN_FOLDER"""

import json
import signal

import harness


class why(harness.cluster_test):
    lease = None  # processes are stopped

    def answer(self, *job, codes=(0, 4)):
        return json.loads(self.tool("why", *job, "--json", "--timeout", "500ms", codes=codes))

    def test_a_stopped_node_is_the_root(self):
        self.start_nodes(3)
        data = self.make_data()
        for number, (update, actor) in enumerate((("sync", "worker/1/"), ("async", "shard/0/"), ("sync", "shard/0/"))):
            job = f"job{number}"
            training = self.start_training("--workers", 2, "--shards", 1, "--epochs", 1_000_000, "--name", job, "--data", data,
                                           "--update", update)
            self.until_step(training, job, 20)
            node = self.node_of(job, actor)
            name = self.name_of(node)
            node.send(signal.SIGSTOP)
            # At once, while the node's lease still runs: nobody has given it up yet.
            answer = self.answer(job, codes=(0, 1, 4))
            self.assertIn(answer["kind"], ("node lost", "job failed"), answer)
            self.assertIn(f"node {name} (pid {node.pid})", answer["root"])
            self.assertEqual(training.wait(), 1, training.tail())
            node.send(signal.SIGCONT)
            self.wait_nodes(3)

    def test_a_training_that_goes_on_has_no_root(self):
        # With one credit per edge nearly every actor waits at nearly every moment.
        self.start_nodes(3)
        training = self.start_training("--workers", 2, "--shards", 2, "--epochs", 1_000_000, "--name", "tight", "--credits", 1,
                                       "--data", self.make_data())
        self.until_step(training, "tight", 20)
        for _ in range(10):
            answer = self.answer("tight")
            self.assertNotIn(answer["kind"], ("node lost", "cycle", "actor ended", "actor missing", "no job", "job failed"), answer)
        training.send(signal.SIGINT)
        self.assertEqual(training.wait(), 130, training.tail())

    def test_a_program_that_takes_no_values_is_the_root(self):
        self.start_nodes(1)
        program = self.start("stuck_pipeline", self.cluster, "no-fetch")
        self.assertIsNotNone(program.line("^stuck$"), program.tail())
        answer = self.until("the root is the program's fetch", lambda: (a := self.answer("stuck"))["kind"] == "program fetch" and a)
        self.assertIn("the program does not take", answer["root"])
        text = self.tool("why", "stuck")
        self.assertIn("the program does not take", text.splitlines()[0])
        self.assertEqual(len(text.splitlines()), 1 + len(answer["chain"]), text)
        self.assertTrue(program.is_running(), program.tail())

    def test_a_program_that_feeds_nothing_is_the_root(self):
        self.start_nodes(1)
        program = self.start("stuck_pipeline", self.cluster, "no-feed")
        self.assertIsNotNone(program.line("^stuck$"), program.tail())
        answer = self.until("the root is the program's feed", lambda: (a := self.answer("stuck"))["kind"] == "program feed" and a)
        self.assertIn("images", answer["root"])
        self.assertTrue(answer["chain"])
        self.assertIn("images", self.tool("why"))
        self.assertTrue(program.is_running(), program.tail())

    def test_a_stuck_program_that_is_killed_leaves_nothing(self):
        self.start_nodes(1)
        program = self.start("stuck_pipeline", self.cluster, "no-feed")
        self.assertIsNotNone(program.line("^stuck$"), program.tail())
        program.send(signal.SIGKILL)
        program.wait()
        self.until("the job is gone", lambda: self.answer()["kind"] == "no job")


if __name__ == "__main__":
    harness.main()
