#!/usr/bin/env python3
"""Nodes and programs are killed in mid-training, and the work goes on with the same bits: recovery.py BIN_FOLDER"""

import json
import os
import signal

import harness

STEPS = 480  # of each worker: 60 epochs


class recovery(harness.cluster_test):
    def setUp(self):
        super().setUp()
        self.data = self.make_data()
        self.training_flags = ["--workers", 2, "--shards", 2, "--epochs", harness.ENDLESS, "--data", self.data, "--json"]

    def undisturbed(self, steps):
        return self.json_of(self.train_alone(*self.training_flags, "--steps", steps))["weights_hash"]

    def begin(self, *arguments, step=40):
        training = self.start_training(*self.training_flags, "--on-failure", "resume", "--name", "job", *arguments)
        self.until_step(training, "job", step)
        return training

    def finish(self, training):
        """It goes on, and ends with the bits of as many steps that nobody disturbed."""
        self.goes_on_for(training, "job")
        steps = self.end_in_good_order(training, "job")
        result = self.json_of(training)
        self.assertEqual(result["weights_hash"], self.undisturbed(steps), training.tail())
        return result

    def kill(self, node):
        node.send(signal.SIGKILL)
        node.wait()

    def checkpoints(self):
        folder = self.path("checkpoints/job")
        return sorted(n for n in os.listdir(folder) if n.startswith("step-") and os.path.exists(os.path.join(folder, n, "manifest.json")))

    # --- nodes --------------------------------------------------------------------------------------------------------

    def test_a_killed_worker_changes_no_bit_and_survivors_live_on(self):
        self.start_nodes(3)
        training = self.begin()
        victim = self.node_of("job", "worker/0/")
        self.kill(victim)
        self.start_node()
        result = self.finish(training)
        self.assertGreaterEqual(result["recoveries"], 1)
        self.assertIn(f"pid {victim.pid}", training.err)
        for node in self.nodes:
            self.assertEqual(node.is_running(), node is not victim)

    def test_a_node_without_memory_for_its_part_is_left_out(self):
        """Whichever of the nodes it is: the others can take the work."""
        self.start_nodes(1)
        self.start_nodes(1, "--memory", "1MiB")
        self.start_nodes(1)
        training = self.begin(step=1)
        self.assertIn("has 1.0 MiB for jobs", training.err)
        self.finish(training)

    def test_killed_shards_come_back_from_a_checkpoint(self):
        self.start_nodes(3)
        training = self.begin("--checkpoint", self.path("checkpoints"), "--checkpoint-every", 10)
        self.until("there is a checkpoint", self.checkpoints)
        self.kill(self.node_of("job", "shard/0/dense_1/weights"))
        result = self.finish(training)
        self.assertGreaterEqual(result["recoveries"], 1)
        self.assertIn("back to the checkpoint of step", training.err)

    def test_without_checkpoints_killed_shards_begin_again(self):
        self.start_nodes(3)
        training = self.begin()
        self.kill(self.node_of("job", "shard/0/dense_1/weights"))
        result = self.finish(training)
        self.assertGreater(result["redone_steps"], 0)

    def test_with_restart_every_failure_begins_again(self):
        self.start_nodes(3)
        training = self.start_training(*self.training_flags, "--on-failure", "restart", "--name", "job")
        self.until_step(training, "job", 40)
        self.kill(self.node_of("job", "worker/1/"))
        self.finish(training)
        self.assertIn("goes on from step 0", training.err)

    def test_one_node_then_three_then_two(self):
        first = self.start_nodes(1)[0]
        training = self.begin()
        self.start_nodes(2)
        training.line("has joined: the work is spread anew", "err")
        self.until("the work is spread", lambda: (self.job("job") or {}).get("epoch", 1) >= 2)
        self.kill(next(n for n in self.nodes if n is not first))
        self.finish(training)

    def test_nodes_that_are_asked_to_leave_hand_their_work_over(self):
        self.start_nodes(3)
        training = self.begin()
        for actor in ("shard/0/dense_1/weights", "worker/0/"):
            node = self.node_of("job", actor)
            epoch = self.job("job")["epoch"]
            node.send(signal.SIGTERM)
            self.assertEqual(node.wait(), 0, node.tail())
            self.assertGreater(self.job("job")["epoch"], epoch)
        result = self.finish(training)
        self.assertEqual(result["recoveries"], 0, training.tail())

    def test_asynchronous_training_applies_every_gradient_once(self):
        self.start_nodes(3)
        training = self.start_training(*self.training_flags, "--update", "async", "--on-failure", "resume", "--name", "job")
        self.until_step(training, "job", 60)
        self.kill(self.node_of("job", "worker/0/"))
        self.goes_on_for(training, "job")
        steps = self.end_in_good_order(training, "job")
        result = self.json_of(training)
        self.assertGreaterEqual(result["recoveries"], 1)
        self.assertEqual(result["applied"], steps)
        # So say those that know of it when its program has gone.
        self.assertEqual([(j["state"], j["step"], j["steps"]) for j in self.list("jobs")], [("done", steps, steps)])

    def test_with_replicas_killed_shards_lose_no_committed_step(self):
        self.start_nodes(3)
        training = self.begin("--replicas", 1)
        job = self.job("job")
        self.assertEqual((job["workers"], job["shards"], job["update"]), (2, 2, "sync"))
        for shard in ("shard/0/dense_1/weights", "replica/0/dense_1/weights"):
            step = self.job("job")["step"]
            self.kill(self.node_of("job", shard))
            self.start_node()
            self.until("it goes on", lambda: self.job("job")["state"] == "running" and self.job("job")["step"] > step + 20)
        result = self.finish(training)
        self.assertEqual(result["recoveries"], 2)
        self.assertNotIn("variables are lost", training.err)

    # --- clocks ---

    def start_with_clock(self, seconds, start, *arguments):
        environment = self.environment
        self.environment = dict(environment, LD_PRELOAD=os.path.join(harness.BIN, "clock_jump.so"), CLOCK_JUMP_FILE=self.path("jump"),
                                CLOCK_JUMP_SECONDS=str(seconds))
        p = start(*arguments)
        self.environment = environment
        return p

    def test_wall_clocks_that_jump_an_hour_change_nothing(self):
        nodes = [self.start_with_clock(seconds, self.start_node) for seconds in (3600, -3600, 3600)]
        for node in nodes:
            self.address(node)
        self.wait_nodes(3)
        training = self.start_with_clock(3600, self.begin, "--replicas", 1, "--checkpoint", self.path("checkpoints"), "--checkpoint-every", "100ms")
        started = self.job("job")["started_seconds"]
        with open(self.path("jump"), "w"):
            pass
        self.until("the program's clock has jumped", lambda: abs(self.job("job")["started_seconds"] - started) > 3000)
        epoch = self.job("job")["epoch"]
        step = self.job("job")["step"]
        self.until("it goes on", lambda: self.job("job")["step"] > step + 20)
        self.assertEqual(self.job("job")["epoch"], epoch)  # nobody was held dead
        self.kill(self.node_of("job", "shard/0/dense_1/weights"))
        self.assertEqual(self.finish(training)["recoveries"], 1)
        self.assertEqual(len([n for n in nodes if n.is_running()]), 2)
        self.assertEqual([n["incarnation"] for n in self.list("nodes") if n["kind"] == "node" and n["state"] == "alive"], [1, 1])

    # --- tools ---

    def test_tools_make_list_and_verify_checkpoints(self):
        self.start_nodes(2)
        folder = self.path("checkpoints")
        training = self.begin("--checkpoint", folder)
        self.assertIn("new checkpoint", self.tool("checkpoint", "make", "job"))
        found = json.loads(self.tool("checkpoint", "list", folder, "--json"))
        self.assertEqual([c["state"] for c in found], ["whole"])
        self.assertEqual(found[0]["job"], "job")
        self.assertIn("whole", self.tool("checkpoint", "verify", os.path.join(folder, "job")))
        part = next(os.path.join(found[0]["folder"], n) for n in os.listdir(found[0]["folder"]) if n.startswith("part-"))
        with open(part, "r+b") as f:
            f.seek(-1, os.SEEK_END)
            last = f.read(1)
            f.seek(-1, os.SEEK_END)
            f.write(bytes([last[0] ^ 1]))
        self.assertIn("damaged", self.tool("checkpoint", "verify", folder, codes=(1,)))
        self.tool("checkpoint", "list", self.path("nowhere"), codes=(6,))
        self.tool("checkpoint", "make", "nobody", codes=(6,))
        self.tool("checkpoint", "forget", folder, codes=(2,))
        training.send(signal.SIGINT)
        training.wait()

    def test_a_node_leaves_when_the_tool_asks_it_to(self):
        self.start_nodes(3)
        training = self.begin()
        node = self.node_of("job", "shard/0/dense_1/weights")
        name = self.name_of(node)
        self.assertIn("has left", self.tool("cluster", "leave", name))
        self.assertEqual(node.wait(), 0, node.tail())
        self.tool("cluster", "leave", name, codes=(6,))
        client = next(n["name"] for n in self.list("nodes") if n["kind"] == "client")
        self.tool("cluster", "leave", client, codes=(1,))
        result = self.finish(training)
        self.assertEqual(result["recoveries"], 0)

    def test_who_has_left_is_news_to_those_who_saw_it(self):
        first, second = self.start_nodes(2)
        gone = self.name_of(second)
        self.tool("cluster", "leave", gone)
        self.assertIn(gone, [n["name"] for n in self.list("nodes")])
        third = self.start_node()
        self.wait_nodes(2)
        name = self.name_of(first)
        self.kill(first)
        self.until("the death is seen", lambda: any(n["name"] == name and n["state"] == "dead" for n in self.list("nodes", "--join", self.address(third))))
        self.assertNotIn(gone, [n["name"] for n in self.list("nodes")])

    # --- programs -----------------------------------------------------------------------------------------------------

    def test_a_program_that_is_killed_and_started_again_goes_on(self):
        self.start_nodes(3)
        saved = ["--checkpoint", self.path("checkpoints"), "--checkpoint-every", 10]
        training = self.begin(*saved)
        self.until("there is a checkpoint", self.checkpoints)
        training.send(signal.SIGKILL)
        training.wait()
        again = self.start_training(*self.training_flags, "--on-failure", "resume", "--name", "job", *saved, "--resume")
        self.finish(again)
        self.assertIn("goes on with the checkpoint of step", again.err)

    def test_embedded_training_resumes_with_the_same_bits(self):
        saved = ["--checkpoint", self.path("checkpoints"), "--name", "job"]
        self.train_alone(*self.training_flags, "--steps", STEPS // 2, *saved)
        whole = self.train_alone(*self.training_flags, "--steps", STEPS, *saved, "--resume")
        self.assertEqual(self.json_of(whole)["weights_hash"], self.undisturbed(STEPS))
        self.assertEqual(self.json_of(whole)["steps"], STEPS // 2)

    def test_two_programs_cannot_have_one_job(self):
        self.start_nodes(3)
        saved = ["--checkpoint", self.path("checkpoints"), "--checkpoint-every", "1s", "--resume"]
        first = self.begin(*saved)
        second = self.train(*self.training_flags, "--name", "job", *saved, code=5)
        self.assertIn(f"pid {first.pid}", second.err)
        self.assertEqual(len(second.err.splitlines()), 1, second.tail())
        first.send(signal.SIGINT)
        first.wait()

    # --- bad input ----------------------------------------------------------------------------------------------------

    def one_line(self, *arguments, code, says):
        done = self.train_alone(*arguments, code=code)
        lines = [l for l in done.err.splitlines() if "%" not in l]
        self.assertEqual(len(lines), 1, done.tail())
        self.assertIn(says, lines[0])

    def test_checkpoints_that_do_not_fit_are_refused_with_one_line(self):
        saved = ["--checkpoint", self.path("checkpoints"), "--name", "job"]
        few = ["--data", self.data, "--epochs", 2, "--json"]
        self.train_alone(*few, *saved)
        self.one_line(*few, *saved, code=2, says="--resume goes on with them")
        self.one_line(*few, *saved, "--resume", "--batch", 64, code=2, says="batch: the checkpoint was made with 128, this run has 64")
        self.one_line(*few, *saved, "--resume", "--workers", 2, code=2, says="--rebatch")
        self.one_line("--data", self.data, "--epochs", 1, *saved, "--resume", code=2, says="this run has 16 steps")
        more = self.train_alone("--data", self.data, "--epochs", 4, "--json", *saved, "--resume", "--rebatch", "--batch", 64)
        self.assertEqual(self.json_of(more)["steps"], 2 * 32)
        self.one_line(*few, "--resume", code=2, says="need --checkpoint DIR")
        self.one_line(*few, *saved, "--checkpoint-every", "0", code=2, says="--checkpoint-every")
        self.one_line(*few, *saved, "--checkpoint-every", "soon", code=2, says="--checkpoint-every")
        self.one_line(*few, "--checkpoint", os.path.join(self.data, "train-images-idx3-ubyte"), code=2, says="--checkpoint")

    def test_a_damaged_checkpoint_is_passed_over_for_the_last_whole_one(self):
        saved = ["--checkpoint", self.path("checkpoints"), "--name", "job", "--checkpoint-every", 16]
        few = ["--data", self.data, "--epochs", 2, "--json"]
        wanted = self.json_of(self.train_alone(*few))["weights_hash"]
        self.train_alone(*few, *saved)
        newest = self.checkpoints()[-1]
        path = self.path(f"checkpoints/job/{newest}/part-0.safetensors")
        with open(path, "r+b") as f:
            f.seek(1000)
            byte = f.read(1)
            f.seek(1000)
            f.write(bytes([byte[0] ^ 1]))
        again = self.train_alone(*few, *saved, "--resume")
        self.assertIn("passed over", again.err)
        self.assertEqual(self.json_of(again)["weights_hash"], wanted)
        self.assertEqual(self.json_of(again)["steps"], 16)


if __name__ == "__main__":
    harness.main()
