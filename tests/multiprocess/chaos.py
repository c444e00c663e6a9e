#!/usr/bin/env python3
"""tools/chaos kills, looks and judges as it says; a short run of it with real deaths: chaos.py BIN_FOLDER"""

import json
import os
import sys
import unittest

import harness

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools")
sys.path.insert(0, os.path.join(TOOLS, "chaos_parts"))

import protocol_state  # noqa: E402
import timeline  # noqa: E402


def actor(node, kind, name, ins=(), outs=(), come=0, gone=0):
    """As `troupe list actors --json` has it. A port: (peer, its node, free credits of 2)."""
    ports = [{"name": f"{way}{i}", "peer": peer, "peer_node": where, "credits": credits, "credits_max": 2}
             for way, list_ in (("in", ins), ("out", outs)) for i, (peer, where, credits) in enumerate(list_)]
    return {"node": node, "kind": kind, "name": name, "job": "job", "state": "idle", "messages_in": come, "messages_out": gone, "ports": ports}


class what_a_stopped_node_was_doing(unittest.TestCase):
    """Workers 0 and 1 on a and b, the shard of w on c."""

    EDGES = {"worker/0/gradients/w/receive/2": ("w", 0), "worker/1/gradients/w/receive/2": ("w", 1)}

    def shard_stopped(self, gradients, untaken, versions):
        """By worker: gradients sent, how many of them were not taken, versions that have come."""
        actors = []
        for worker, node in enumerate("ab"):
            actors.append(actor(node, "send", f"worker/{worker}/gradients/w/send/2", [("x", node, 0)],
                                [(f"worker/{worker}/gradients/w/receive/2", "c", 2 - untaken[worker])], gone=gradients[worker]))
            actors.append(actor(node, "receive", f"shard/0/w{':1' * worker}/receive/{worker}", [("s", "c", 0)], [(f"worker/{worker}/w", node, 2)],
                                come=versions[worker]))
        return protocol_state.states_of(actors, "job", "c", self.EDGES, 2)

    def worker_stopped(self, versions, untaken, loss, gradients):
        actors = [actor("c", "send", "shard/0/w/send/0", [("x", "c", 0)], [("shard/0/w/receive/0", "a", 2 - untaken)], gone=versions),
                  actor("p", "receive", "worker/0/softmax_cross_entropy/receive/3", [("s", "a", 0)], [("loss", "p", 0)], come=loss)]
        actors += [actor("c", "receive", f"worker/0/gradients/{i}/receive/2", [("s", "a", 0)], [(f"shard/0/{i}", "c", 2)], come=n)
                   for i, n in enumerate(gradients)]
        return protocol_state.states_of(actors, "job", "a", self.EDGES, 2)

    def test_of_a_shard(self):
        self.assertEqual(self.shard_stopped((5, 5), (0, 0), (6, 5)), {"pull"})
        self.assertEqual(self.shard_stopped((6, 6), (1, 0), (6, 6)), {"push"})
        self.assertEqual(self.shard_stopped((6, 6), (0, 0), (6, 6)), {"apply"})
        self.assertEqual(self.shard_stopped((6, 5), (0, 0), (6, 6)), {"compute"})

    def test_of_a_worker(self):
        self.assertEqual(self.worker_stopped(6, 1, 5, (5, 5)), {"pull"})
        self.assertEqual(self.worker_stopped(6, 0, 5, (5, 5)), {"commit"})
        self.assertEqual(self.worker_stopped(6, 0, 6, (6, 5)), {"push"})
        self.assertEqual(self.worker_stopped(6, 0, 6, (5, 5)), {"compute"})


class what_a_death_cost(unittest.TestCase):
    SAID = [(1.02, "node n1 (pid 7), actor x, step 31: died: gone"), (1.3, "goes on from step 20 (epoch 2)"),
            (2.0, "n4 has joined: the work is spread anew"), (2.2, "goes on from step 40 (epoch 3)")]

    def test_a_step_that_was_on_its_way_is_no_new_one(self):
        d = timeline.death(1.0, 7, "shard", 30)
        timeline.follow([d], self.SAID, [0.9, 1.01, 1.25, 1.5, 1.6])
        self.assertEqual((d.noticed, d.runs, d.new_step, d.lost_steps), (1.02, 1.3, 1.5, 10))

    def test_a_recovery_lasts_from_the_death_until_the_job_runs(self):
        d = timeline.death(1.0, 7, "shard", 30)
        timeline.follow([d], self.SAID, [])
        self.assertTrue(timeline.is_in_recovery(1.2, [d], self.SAID))
        self.assertFalse(timeline.is_in_recovery(1.4, [d], self.SAID))
        self.assertTrue(timeline.is_in_move(2.1, self.SAID))
        self.assertFalse(timeline.is_in_move(1.1, self.SAID))

    def test_where_the_copies_were(self):
        said = [(1.0, "node n1 (pid 7), actor x, step 31: died: gone"), (1.3, timeline.NO_REPLICA), (1.3, "goes on from step 20 (epoch 2)"),
                (2.0, "n4 has joined: the work is spread anew"), (2.2, "goes on from step 40 (epoch 3)")]
        first = timeline.death(0.9, 7, "shard", 30)
        timeline.follow([first], said, [])
        times = [0.5, 1.5, 2.4]
        self.assertEqual([timeline.copies_at(at, [first], said, times) for at in (0.6, 0.95, 1.2, 1.6, 2.1, 2.3, 2.5)], [2, 1, 1, 1, 1, 1, 2])
        idle = timeline.death(2.35, 8, "none", 40)
        self.assertEqual(timeline.copies_at(2.5, [first, idle], said, times), 2)
        said.append((3.0, "n5 leaves: its work moves to other nodes"))
        said.append((3.2, "goes on from step 50 (epoch 4)"))
        self.assertEqual([timeline.copies_at(at, [first], said, times) for at in (3.1, 3.3)], [2, 2])

    def test_figures(self):
        self.assertEqual(timeline.spread([4, None, 1, 2]), {"n": 3, "p50": 2, "p99": 4, "max": 4})
        self.assertEqual(timeline.spread([]), {"n": 0, "p50": None, "p99": None, "max": None})


class chaos(harness.cluster_test):
    def chaos(self, *arguments, code):
        p = harness.program([sys.executable, os.path.join(TOOLS, "chaos"), *map(str, arguments)], self.environment)
        self.programs.append(p)
        self.assertEqual(p.wait(300), code, p.tail())
        return p

    def test_deaths_leave_the_bits_as_they_are(self):
        # Far more epochs than three kills and recoveries take: a training that is over cannot be killed.
        done = self.chaos("kills", "--bin", harness.BIN, "--runs", 1, "--kills", 3, "--epochs", 500, "--data", self.make_data(), "--json",
                          code=0)
        result = json.loads(done.out)
        self.assertEqual((result["kills"], result["broken"]), (3, []), done.tail())
        self.assertGreaterEqual(result["figures"]["all"]["new_step_ms"]["n"], 2, done.tail())
        self.assertEqual(len([line for line in done.lines["err"] if line.startswith("chaos: kill ")]), 3)
        self.assertEqual([name for name in os.listdir(self.folder.name) if name != "images"], [])

    def test_samples_are_used_once_while_nodes_come_and_go(self):
        done = self.chaos("elastic", "--bin", harness.BIN, "--data", self.make_data(), "--json", code=0)
        result = json.loads(done.out)
        self.assertEqual(result["broken"], [], done.tail())
        ledger = result["run"][0]["ledger"]
        self.assertEqual((ledger["samples"], ledger["epochs"], ledger["used_otherwise"], ledger["steps"]), (4096, 1, 0, 2048), done.tail())

    def test_usage(self):
        self.chaos("floods", code=2)
        self.chaos("kills", "--bin", self.folder.name, code=2)
        self.chaos("kills", "--bin", harness.BIN, "--kills", 0, code=2)

    def test_an_interrupted_run_leaves_nothing(self):
        p = harness.program([sys.executable, os.path.join(TOOLS, "chaos"), "kills", "--bin", harness.BIN, "--data", self.make_data(), "--runs", "1",
                             "--epochs", "2000"], self.environment)
        self.programs.append(p)
        self.assertIsNotNone(p.line("undisturbed run", "err"))
        p.send(harness.signal.SIGINT)
        self.assertEqual(p.wait(), 130, p.tail())
        self.assertEqual([name for name in os.listdir(self.folder.name) if name != "images"], [])


if __name__ == "__main__":
    harness.main()
