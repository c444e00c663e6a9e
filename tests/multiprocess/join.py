#!/usr/bin/env python3
"""Nodes find each other, have names, leave gracefully; clients are not counted: join.py BIN_FOLDER"""

import signal
import time

import harness

TRIALS = 10


class join(harness.cluster_test):
    def test_three_nodes_started_at_once_see_three(self):
        nodes = self.start_nodes(3)
        listed = self.list("nodes")
        self.assertEqual({n["pid"] for n in listed}, {n.pid for n in nodes})
        self.assertEqual({n["state"] for n in listed}, {"alive"})
        self.assertEqual({n["kind"] for n in listed}, {"node"})
        self.assertEqual(len({n["name"] for n in listed}), 3)
        self.assertEqual({n["address"] for n in listed}, {self.address(n) for n in nodes})

    def seen_by(self, node):
        """Pids of the living nodes that are found by asking this one, and those that it names."""
        return {n["pid"] for n in self.list("nodes", "--join", self.address(node)) if n["state"] == "alive"}

    def test_every_node_sees_all_others_soon(self):
        for _ in range(TRIALS):
            nodes = [self.start_node() for _ in range(3)]
            for node in nodes:
                self.address(node)
            ready = max(node.times["out"][0] for node in nodes)
            for node in nodes:
                self.until("the node sees all", lambda: self.seen_by(node) == {n.pid for n in nodes}, pause=0)
            print(f"assembled {time.monotonic() - ready:.3f}", flush=True)
            for node in nodes:
                node.send(signal.SIGTERM)
            for node in nodes:
                self.assertEqual(node.wait(), 0, node.tail())
            self.nodes.clear()

    def test_a_later_node_joins(self):
        self.start_nodes(2)
        self.start_nodes(1)
        self.assertEqual(len(self.list("nodes")), 3)

    def test_the_job_of_a_node_is_listed(self):
        ps = self.start_node("--job", "ps")
        worker = self.start_node("--job", "worker")
        plain = self.start_node()
        self.wait_nodes(3)
        jobs = {n["pid"]: n["job"] for n in self.list("nodes")}
        self.assertEqual(jobs, {ps.pid: "ps", worker.pid: "worker", plain.pid: ""})

    def test_SIGTERM_and_SIGINT_leave_gracefully(self):
        nodes = self.start_nodes(3)
        for number, node in ((signal.SIGTERM, nodes[0]), (signal.SIGINT, nodes[1])):
            node.send(number)
            self.assertEqual(node.wait(), 0, node.tail())
            state = lambda: {n["pid"]: n["state"] for n in self.list("nodes")}.get(node.pid, "forgotten")
            self.until("the node is listed as left", lambda: state() != "alive")
            self.assertEqual(state(), "left")
            self.assertEqual(self.complaints(node), [])

    def test_a_client_is_no_node(self):
        self.start_nodes(2)
        training = self.start_training("--workers", "2", "--epochs", "100000", "--name", "counted")
        self.until_step(training, "counted", 1)
        kinds = [n["kind"] for n in self.list("nodes") if n["state"] == "alive"]
        self.assertEqual(sorted(kinds), ["client", "node", "node"])
        self.tool("wait", "nodes=3", "--timeout", "500ms", codes=(4,))
        training.send(signal.SIGINT)
        self.assertEqual(training.wait(), 130, training.tail())

    def test_clusters_of_other_names_are_strangers(self):
        self.start_nodes(1)
        other = self.start("troupe-node", "--cluster", self.cluster + "-other", "--join", self.address(self.nodes[0]))
        self.address(other)
        self.tool("wait", "nodes=2", "--timeout", "1s", codes=(4,))
        self.assertEqual(len([n for n in self.list("nodes") if n["state"] == "alive"]), 1)


if __name__ == "__main__":
    harness.main()
