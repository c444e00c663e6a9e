#!/usr/bin/env python3
"""`troupe timeline` records real processes: timeline.py BIN_FOLDER"""

import bisect
import collections
import json
import os
import pty
import select
import signal
import subprocess
import time

import harness


class trace:
    """A file of a timeline, and what holds of every one."""

    def __init__(self, test, text):
        whole = json.loads(text)
        self.other = whole["otherData"]
        self.processes, self.threads, self.slices = {}, {}, collections.defaultdict(list)
        ends = collections.defaultdict(list)
        for e in whole["traceEvents"]:
            if e["ph"] == "M" and e["name"] == "process_name":
                self.processes[e["pid"]] = e["args"]["name"]
            elif e["ph"] == "M" and e["name"] == "thread_name":
                self.threads[e["pid"], e["tid"]] = e["args"]["name"]
            elif e["ph"] == "X":
                self.slices[e["pid"], e["tid"]].append(e)
            elif e["ph"] in "sf":
                ends[e["id"]].append(e)
        for lane in self.slices.values():
            for a, b in zip(lane, lane[1:]):
                test.assertLessEqual(round(1000 * (a["ts"] + a["dur"])), round(1000 * b["ts"]))
        self.arrows, self.begins = [], {}
        for pair in ends.values():
            test.assertEqual([e["ph"] for e in pair], ["s", "f"])
            self.arrows.append(tuple(pair))

    def of(self, category):
        return [e for lane in self.slices.values() for e in lane if e["cat"] == category]

    def slice_at(self, end):
        lane = self.slices[end["pid"], end["tid"]]
        begins = self.begins.setdefault((end["pid"], end["tid"]), [e["ts"] for e in lane])
        return lane[bisect.bisect_right(begins, end["ts"]) - 1]

    def across(self):
        return [(s, f) for s, f in self.arrows if s["pid"] != f["pid"]]


class timeline(harness.cluster_test):
    def record(self, *arguments, codes=(0,)):
        p = self.run_program("troupe", "--cluster", self.cluster, "timeline", "--timeout", "30s", *arguments, seconds=3 * harness.HANG)
        self.assertIn(p.code, codes, p.err)
        self.said = p.err
        return trace(self, p.out)

    def start_job(self, name="job", *arguments):
        training = self.start_training("--workers", 2, "--shards", 2, "--epochs", 1_000_000, "--name", name, "--data", self.make_data(), *arguments)
        self.until_step(training, name, 5)
        return training

    def test_a_training_over_two_nodes_has_ops_transfers_and_arrows_across(self):
        self.start_nodes(2)
        self.start_job()
        t = self.record("--seconds", "0.5")
        self.assertEqual(len(t.processes), 3)  # with the program
        self.assertEqual(sum("/job:worker/task:" in name for name in t.processes.values()), 2)
        for kind in ("op", "shard", "emit", "send", "receive", "fetch", "transfer", "wait", "actor"):
            self.assertTrue(t.of(kind), kind)
        for e in t.of("op"):
            self.assertEqual(e["args"]["job"], "job")
            self.assertIn("type", e["args"])
            # What still ran when the recording ended does not know its step yet.
            self.assertTrue("step" in e["args"] or e["args"].get("is_finished") is False, e)
        self.assertTrue(any(e["args"].get("type", "").startswith("matmul") for e in t.of("op")))
        self.assertTrue(all(e["args"]["bytes"] > 0 for e in t.of("transfer")))
        self.assertTrue(any("waited_for" in e["args"] for e in t.of("wait")))
        self.assertTrue(t.across())
        for s, f in t.across():
            self.assertEqual((t.slice_at(s)["cat"], t.slice_at(f)["cat"]), ("send", "receive"))
            self.assertEqual(t.slice_at(s)["args"]["step"], t.slice_at(f)["args"]["step"])
            self.assertLessEqual(s["ts"], f["ts"])  # one host, one clock
        self.assertIn("troupe: recording 0.5 s on 3 nodes\n", self.said + "\n")
        self.assertNotIn("\r", self.said)

    def test_where_nothing_runs_the_file_is_valid_and_a_line_says_so(self):
        self.start_nodes(2)
        t = self.record("--seconds", "0.1")
        self.assertFalse(t.of("op"))
        self.assertFalse(t.arrows)
        self.assertEqual({e["name"] for e in t.of("wait")} - {"idle"}, {"waiting"})
        self.assertIn("nothing ran meanwhile", self.said)

    def test_one_job_of_two(self):
        self.start_nodes(2)
        self.start_job("first")
        self.start_job("second")
        t = self.record("--seconds", "0.3", "--job", "second")
        self.assertEqual({e["args"]["job"] for e in t.of("op")}, {"second"})
        unknown = self.run_program("troupe", "--cluster", self.cluster, "timeline", "--job", "secnod")
        self.assertEqual(unknown.code, 6, unknown.tail())
        self.assertIn("did you mean second?", unknown.err)
        self.assertEqual(unknown.out, "")

    def test_a_node_that_dies_meanwhile_makes_it_partial(self):
        nodes = self.start_nodes(2)
        self.start_job("job", "--on-failure", "resume")
        name = self.name_of(nodes[1])
        p = self.start("troupe", "--cluster", self.cluster, "timeline", "--seconds", 3, "--timeout", "30s")
        self.assertIsNotNone(p.line("recording 3 s on 3 nodes", "err"), p.tail())
        time.sleep(0.3)  # so that it has given something; whether it has decides nothing
        nodes[1].send(signal.SIGKILL)
        self.assertEqual(p.wait(), 4, p.err)
        self.assertIn(f"troupe: node {name} did not answer", p.err)
        t = trace(self, p.out)
        self.assertTrue(t.of("op"))
        self.assertEqual([s["name"] for s in t.other["silent"]], [name])

    def test_a_node_that_stands_still_makes_it_partial(self):
        nodes = self.start_nodes(2)
        name = self.name_of(nodes[1])
        nodes[1].send(signal.SIGSTOP)
        p = self.run_program("troupe", "--cluster", self.cluster, "timeline", "--seconds", "0.1", "--timeout", "1s")
        self.assertEqual(p.code, 4, p.tail())
        self.assertIn(name, p.err)
        self.assertEqual([s["name"] for s in trace(self, p.out).other["silent"]], [name])

    def test_a_tool_that_is_killed_leaves_nodes_that_go_on_and_can_be_recorded_again(self):
        self.start_nodes(2)
        training = self.start_job()
        for _ in range(3):
            p = self.start("troupe", "--cluster", self.cluster, "timeline", "--seconds", 60)
            self.assertIsNotNone(p.line("recording 60 s on 3 nodes", "err"), p.tail())
            p.send(signal.SIGKILL)
            p.wait()
        step = self.job("job")["step"]
        self.until_step(training, "job", step + 10)
        self.assertTrue(self.record("--seconds", "0.2").across())

    def test_nobody_there_is_unreachable(self):
        p = self.run_program("troupe", "--cluster", self.cluster, "timeline", "--seconds", "0.1")
        self.assertEqual(p.code, 3, p.tail())
        self.assertEqual(p.out, "")

    def test_progress_is_redrawn_on_a_terminal(self):
        self.start_nodes(1)
        master, slave = pty.openpty()
        with open(self.path("trace.json"), "w", encoding="utf-8") as out:
            p = subprocess.Popen([os.path.join(harness.BIN, "troupe"), "--cluster", self.cluster, "timeline", "--seconds", "0.5"], env=self.environment,
                                 stdin=subprocess.DEVNULL, stdout=out, stderr=slave)
            self.assertEqual(p.wait(harness.HANG), 0)
        self.assertTrue(select.select([master], [], [], harness.HANG)[0], "nothing was drawn")
        seen = os.read(master, 65536)
        os.close(master)
        os.close(slave)
        self.assertIn(b"\rrecording 0.0 of 0.5 s on 1 node, 0 events\x1b[K", seen)
        self.assertIn(b"\r\x1b[Ktroupe: 0.5 s of 1 node", seen)
        with open(self.path("trace.json"), encoding="utf-8") as f:
            trace(self, f.read())


if __name__ == "__main__":
    harness.main()
