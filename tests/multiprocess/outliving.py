#!/usr/bin/env python3
"""Jobs that outlive their programs: outliving.py BIN_FOLDER"""

import signal

import harness

FAILED, USAGE, TIMED_OUT, NOT_FOUND = 1, 2, 4, 6


class outliving(harness.cluster_test):
    lease = None  # processes are stopped

    def setUp(self):
        super().setUp()
        self.data = self.make_data()
        self.flags = ["--workers", 2, "--shards", 2, "--epochs", harness.ENDLESS, "--data", self.data, "--json", "--name", "job"]
        self.outlive = ["--on-failure", "resume", "--checkpoint", self.path("checkpoints"), "--checkpoint-every", "200ms", "--outlive"]

    def undisturbed(self, steps):
        return self.json_of(self.train_alone(*self.flags, "--steps", steps))

    def begin(self, *more):
        training = self.start_training(*self.flags, *self.outlive, *more)
        self.until_step(training, "job", 20)
        return training

    def goes_on(self, step=None):
        """A node coordinates the job, which makes steps."""
        step = self.job("job")["step"] if step is None else step
        kinds = {}

        def is_there():
            kinds.update({n["name"]: n["kind"] for n in self.list("nodes")})
            job = next((j for j in self.list("jobs") if j["name"] == "job"), None)
            return job and job["state"] == "running" and job["step"] > step and kinds.get(job["client"]) == "node"

        self.until("a node goes on with the job", is_there)

    def attach(self, *more):
        return self.start("attach_to_training", "job", "--cluster", self.cluster, "--json", *more)

    def has_the_job(self, p):
        def is_its():
            self.assertTrue(p.is_running(), p.tail())
            job = self.job("job")
            return job["state"] == "running" and {n["name"]: n["pid"] for n in self.list("nodes")}.get(job["client"]) == p.pid
        self.until(f"{p} coordinates the job", is_its)

    def ends(self, p):
        self.has_the_job(p)
        self.goes_on_for(p, "job")
        wanted = self.undisturbed(self.end_in_good_order(p, "job"))
        told = self.json_of(p)
        self.assertEqual(told["ended"], "finished", p.tail())
        self.assertEqual(told["weights_hash"], wanted["weights_hash"], p.tail())
        # Every loss, those from before it came included.
        self.assertEqual((told["losses"], told["first_step"], told["last_step"]), (wanted["steps"], 0, wanted["steps"] - 1), p.tail())

    def test_a_program_that_is_killed_leaves_a_job_that_another_one_attaches_to(self):
        self.start_nodes(3)
        training = self.begin()
        training.send(signal.SIGKILL)
        training.wait()
        self.goes_on()
        p = self.attach("--save", self.path("w.safetensors"))
        self.ends(p)

    def test_a_program_detaches_and_the_job_ends_with_a_checkpoint(self):
        self.start_nodes(2)
        training = self.begin()
        self.assertIn("is coordinated by n", self.tool("job", "detach", "job"))
        self.assertEqual(training.wait(), 0, training.tail())
        self.assertIn("goes on without this program", training.err)
        steps = self.end_in_good_order(training, "job")
        self.assertEqual(self.job("job")["state"], "done")
        self.assertIn("whole", self.tool("checkpoint", "verify", self.path("checkpoints/job")))
        late = self.run_program("attach_to_training", "job", "--cluster", self.cluster)
        self.assertEqual(late.code, FAILED, late.tail())
        self.assertIn("the job is over: done", late.err)
        # What it has learnt is there: a program that resumes has nothing left to do.
        again = self.train(*self.flags, "--steps", steps, "--resume", *self.outlive[:-1])
        self.assertEqual(self.json_of(again)["steps"], 0, again.tail())
        self.assertEqual(self.json_of(again)["weights_hash"], self.undisturbed(steps)["weights_hash"])

    def test_a_program_that_stands_still_comes_back_to_its_job(self):
        self.start_nodes(3)
        training = self.begin()
        training.send(signal.SIGSTOP)
        self.goes_on()
        training.send(signal.SIGCONT)
        self.has_the_job(training)
        self.goes_on_for(training, "job")
        wanted = self.undisturbed(self.end_in_good_order(training, "job"))
        got = self.json_of(training)
        self.assertEqual(got["weights_hash"], wanted["weights_hash"], training.tail())
        self.assertEqual(got["steps"], wanted["steps"], training.tail())
        self.assertIn("attaches to it again", training.err)

    def test_a_program_with_a_long_lease_is_waited_for(self):
        self.start_nodes(2)
        training = self.start_training(*self.flags, "--on-failure", "resume", "--lease", "10m")
        self.until_step(training, "job", 20)
        training.send(signal.SIGSTOP)
        name = self.job("job")["client"]
        self.until("it gives no sign of life", lambda: any(n["name"] == name and n["state"] == "unreachable" for n in self.list("nodes")))
        self.until("longer than a lease of 1 s", lambda: any(n["name"] == name and n["unreachable_seconds"] > 2 for n in self.list("nodes")))
        training.send(signal.SIGCONT)
        self.goes_on_for(training, "job")
        wanted = self.undisturbed(self.end_in_good_order(training, "job"))
        got = self.json_of(training)
        self.assertEqual((got["weights_hash"], got["recoveries"]), (wanted["weights_hash"], 0), training.tail())

    def test_the_node_that_coordinates_dies_too(self):
        self.start_nodes(4)
        training = self.begin()
        training.send(signal.SIGKILL)
        training.wait()
        for _ in range(2):
            self.goes_on()
            job = self.job("job")
            node = next(n for n in self.nodes if n.is_running() and self.name_of(n) == job["client"])
            node.send(signal.SIGKILL)
            node.wait()
        self.ends(self.attach())

    def test_a_program_and_the_node_after_it_die_at_once(self):
        self.start_nodes(4)
        training = self.begin()
        node = self.nodes[0]  # the oldest one is asked first
        training.send(signal.SIGKILL)
        node.send(signal.SIGKILL)
        training.wait(), node.wait()
        self.goes_on(0)
        self.ends(self.attach())

    def test_attaching_takes_a_job_from_another_program_which_is_told(self):
        self.start_nodes(2)
        training = self.begin()
        p = self.attach()
        self.assertEqual(training.wait(), 0, training.tail())
        self.assertIn("goes on without this program", training.err)
        self.has_the_job(p)
        p.send(signal.SIGINT)  # gives it back
        self.assertEqual(p.wait(), 0, p.tail())
        self.assertEqual(self.json_of(p)["ended"], "detached", p.tail())
        self.ends(self.attach())

    def test_a_node_that_leaves_gives_the_job_to_another(self):
        self.start_nodes(3)
        training = self.begin()
        self.tool("job", "detach", "job")
        training.wait()
        self.goes_on()
        job = self.job("job")
        node = next(n for n in self.nodes if self.name_of(n) == job["client"])
        node.send(signal.SIGTERM)
        self.assertEqual(node.wait(), 0, node.tail())
        self.ends(self.attach())

    def test_a_tool_stops_and_finishes_jobs(self):
        self.start_nodes(2)
        training = self.begin()
        self.assertIn("job is done, at step", self.tool("job", "finish", "job"))
        self.assertEqual(training.wait(), 0, training.tail())
        finished = self.json_of(training)
        self.assertGreater(finished["steps"], 20)
        self.assertEqual(finished["recoveries"], 0)
        self.assertEqual(self.job("job")["state"], "done")
        # As many steps at once give the same bits.
        self.assertIn("whole", self.tool("checkpoint", "verify", self.path("checkpoints/job")))
        self.flags[self.flags.index("job")] = "other"
        stopped = self.start_training(*self.flags)
        self.until_step(stopped, "other", 5)
        self.assertIn("other is stopped, at step", self.tool("job", "stop", "other"))
        self.assertEqual(stopped.wait(), 0, stopped.tail())
        self.assertIn("was stopped at step", stopped.err)
        self.assertEqual(self.job("other")["state"], "stopped")
        self.assertIn("stopped", self.tool("why", "other"))

    def test_what_is_wrong_is_told(self):
        self.start_nodes(2)
        refused = self.run_program("train_classifier", *self.flags, "--cluster", self.cluster, "--outlive")
        self.assertEqual(refused.code, USAGE)
        self.assertIn("--outlive needs --on-failure resume", refused.err)
        nobody = self.run_program("attach_to_training", "nobody", "--cluster", self.cluster, "--timeout", "300ms")
        self.assertEqual(nobody.code, TIMED_OUT, nobody.tail())
        self.assertIn("no process has given job 'nobody' away", nobody.err)
        alone = self.run_program("attach_to_training", "job")
        self.assertEqual(alone.code, USAGE, alone.tail())
        self.tool("job", "forget", "job", codes=(USAGE,))
        self.tool("job", "stop", codes=(USAGE,))
        self.tool("job", "stop", "nobody", codes=(NOT_FOUND,))
        bound = self.start_training(*self.flags)
        self.until_step(bound, "job", 5)
        self.tool("job", "detach", "job", codes=(FAILED,))
        p = self.run_program("attach_to_training", "job", "--cluster", self.cluster)
        self.assertEqual(p.code, FAILED, p.tail())
        self.assertIn("without outlives_program", p.err)
        bound.send(signal.SIGINT)
        self.assertEqual(bound.wait(), 130, bound.tail())


if __name__ == "__main__":
    harness.main()
