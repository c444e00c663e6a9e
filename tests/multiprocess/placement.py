#!/usr/bin/env python3
"""Work that wishes for a device goes to the nodes that have it: placement.py BIN_FOLDER

Devices are those of the host (--gpus host:N), so that every machine has as many as a test wants.
"""

import json
import signal

import harness

USAGE = 2


class placement(harness.cluster_test):
    def setUp(self):
        super().setUp()
        self.data = self.make_data()
        self.model = ["--data", self.data, "--device", "gpu:0", "--json"]

    def start_with(self, count, gpus):
        return self.start_nodes(count, "--gpus", gpus)

    def kill(self, node):
        node.send(signal.SIGKILL)
        node.wait()

    def participants(self, name):
        """Nodes without the program."""
        kinds = {n["name"]: n["kind"] for n in self.list("nodes")}
        return [n for n in self.job(name)["participants"] if kinds.get(n) == "node"]

    # --- what nodes have ----------------------------------------------------------------------------------------------

    def test_the_tool_shows_what_devices_nodes_have(self):
        plain = self.start_with(1, "none")[0]
        several = self.start_node("--gpus", "host:2", "--gpu-memory", "64MiB")
        self.address(several)
        self.wait_nodes(2)
        devices = {n["pid"]: n["devices"] for n in self.list("nodes")}
        self.assertEqual(devices[plain.pid], [])
        self.assertEqual(devices[several.pid], [{"name": f"gpu:{i}", "hardware": "asynchronous host", "memory_bytes": 64 << 20} for i in (0, 1)])
        self.assertIn("gpu:0 to gpu:1 (asynchronous host, 64.0 MiB each)", self.tool("list", "nodes"))
        self.assertIn("gpu:0 to gpu:1 (asynchronous host, 64.0 MiB each)", self.tool("show", "node", self.name_of(several)))

    def test_a_plan_says_which_devices_its_tasks_need(self):
        graph = self.path("graph.troupe")
        p = self.run_program("train_classifier", "--data", self.data, "--device", "gpu:1", "--save-graph", graph)
        self.assertEqual(p.code, 0, p.tail())
        told = self.run_program("troupe", "plan", graph, "--nodes", 2, "--workers", 2)
        self.assertEqual(told.code, 0, told.tail())
        self.assertRegex(told.out, r"/job:worker/task:0: \d+ actors; its node needs gpu:1")
        tasks = json.loads(self.run_program("troupe", "plan", graph, "--nodes", 2, "--workers", 2, "--json").out)["tasks"]
        self.assertEqual({t["name"]: t["devices"] for t in tasks if not t["is_client"]}, {"/job:worker/task:0": ["gpu:1"], "/job:worker/task:1": ["gpu:1"]})

    # --- where work goes ----------------------------------------------------------------------------------------------

    def test_of_three_nodes_the_one_with_the_device_gets_the_work(self):
        wanted = self.json_of(self.train_alone("--data", self.data, "--epochs", 2, "--json"))["weights_hash"]
        self.start_with(2, "none")
        able = self.start_with(1, "host:1")[0]
        done = self.train(*self.model, "--epochs", 2, "--name", "alone")
        self.assertEqual(self.json_of(done)["weights_hash"], wanted)
        self.assertEqual(self.participants("alone"), [self.name_of(able)])

    def test_no_or_too_few_nodes_with_the_device_is_one_line_that_says_what_each_has(self):
        plain = self.start_with(2, "none")
        able = self.start_with(1, "host:1")[0]
        for more, says in ((("--workers", 2), "each of 2 workers that wish for devices needs a node of its own that has them"),
                           (("--device", "gpu:1"), "is to run on gpu:1, and no node that takes workers has it")):
            with self.subTest(more=more):
                p = self.train("--data", self.data, "--json", "--device", "gpu:0", *more, code=USAGE) if more[0] != "--device" else self.train("--data", self.data, "--json", *more, code=USAGE)
                self.assertEqual(p.out, "", p.tail())
                self.assertEqual(len(p.lines["err"]), 1, p.tail())
                for part in (says, *[f"{self.name_of(n)} has no device" for n in plain], f"{self.name_of(able)} has gpu:0 (asynchronous host)"):
                    self.assertIn(part, p.err)
                self.assertRegex(p.err, r"\.cpp:\d+: '")  # the line of who wishes
        self.assertTrue(all(n.is_running() for n in self.nodes))

    def test_workers_that_may_share_a_node_share_its_device(self):
        how = ["--data", self.data, "--epochs", 2, "--workers", 2, "--shards", 2, "--on-failure", "resume", "--json"]
        wanted = self.json_of(self.train_alone(*how))["weights_hash"]
        self.start_with(2, "none")
        able = self.start_with(1, "host:1")[0]
        self.assertEqual(self.json_of(self.train(*how, "--device", "gpu:0", "--name", "shared"))["weights_hash"], wanted)
        self.assertIn(self.name_of(able), self.participants("shared"))

    # --- nodes that go and come ---------------------------------------------------------------------------------------

    def begin(self, *more):
        training = self.start_training(*self.model, "--epochs", harness.ENDLESS, "--on-failure", "resume", "--name", "job", *more)
        self.until_step(training, "job", 40)
        return training

    def finish(self, training):
        self.goes_on_for(training, "job")
        steps = self.end_in_good_order(training, "job")
        wanted = self.json_of(self.train_alone("--data", self.data, "--epochs", harness.ENDLESS, "--steps", steps, "--json"))["weights_hash"]
        self.assertEqual(self.json_of(training)["weights_hash"], wanted, training.tail())
        return self.json_of(training)

    def test_after_a_loss_the_work_goes_to_another_node_with_the_device(self):
        self.start_with(1, "none")
        able = self.start_with(2, "host:1")
        training = self.begin()
        victim = self.node_of("job", "worker/0/")
        self.assertIn(victim, able)
        self.kill(victim)
        self.assertGreaterEqual(self.finish(training)["recoveries"], 1)

    def test_a_job_whose_last_device_is_lost_waits_for_a_node_that_has_it(self):
        plain = self.start_with(1, "none")[0]
        able = self.start_with(1, "host:1")[0]
        training = self.begin()
        self.kill(able)
        said = training.line(r"waits for a node that takes work: .*", "err")
        self.assertIsNotNone(said, training.tail())
        self.assertIn("is to run on gpu:0, and no node that takes workers has it", said[0].group(0))
        self.assertIn(f"{self.name_of(plain)} has no device", said[0].group(0))
        self.start_with(1, "none")  # helps nobody
        self.start_with(1, "host:1")
        self.assertGreaterEqual(self.finish(training)["recoveries"], 1)

    def test_the_last_node_with_the_device_keeps_its_work_until_another_one_comes(self):
        self.start_with(1, "none")
        able = self.start_with(1, "host:1")[0]
        training = self.begin()
        able.send(signal.SIGTERM)
        self.assertIsNotNone(training.line(r"its work stays until one comes", "err"), training.tail())
        self.address(self.start_node("--gpus", "host:1"))  # the other may leave before anybody has counted both
        self.assertEqual(able.wait(), 0, able.tail())
        self.finish(training)


if __name__ == "__main__":
    harness.main()
