#!/usr/bin/env python3
"""Pipelines whose stages run on other nodes: far_pipelines.py BIN_FOLDER"""

import csv
import os
import re
import signal

import harness
import onnx_run
from pipelines import png

FAILED, USAGE, UNREACHABLE, NOT_FOUND = 1, 2, 3, 6


def library(name):
    return os.path.join(harness.BIN, f"lib{name}.so")


class far_pipelines(harness.cluster_test):
    def workers(self, count, *arguments):
        nodes = [self.start_node("--job", "worker", "--name", f"n{i + 1}", "--load", library("far_stages"), *arguments) for i in range(count)]
        self.wait_nodes(count)
        return nodes

    def far(self, what, *arguments, code=0, on="/job:worker"):
        p = self.run_program("far_topologies", what, "--quiet", "--cluster", self.cluster, "--on", on, *arguments)
        self.assertEqual(p.code, code, p.tail())
        return p

    def start_far(self, what, *arguments, on="/job:worker"):
        return self.start("far_topologies", what, "--quiet", "--cluster", self.cluster, "--on", on, *arguments)

    def nothing_runs(self):
        """No stage of a topology that still runs, on any node."""
        self.until("all parts are over", lambda: not [a for a in self.list("actors") if a["kind"] == "stage" and a["state"] != "ended"])

    # --- what comes of them -------------------------------------------------------------------------------------------

    def test_words_are_counted_over_nodes_as_in_one_process(self):
        os.makedirs(self.path("in"))
        for i in range(4):
            with open(self.path(f"in/{i}.txt"), "w") as f:
                for k in range(500):
                    f.write(" ".join(f"word{(i * 7919 + j * j) % (97 + i)}" for j in range(k % 40)) + "\n")

        def rows(*arguments):
            p = self.run_program("count_words", self.path("in/*.txt"), self.path("out.csv"), "--quiet", *arguments)
            self.assertEqual(p.code, 0, p.tail())
            with open(self.path("out.csv"), newline="") as f:
                return list(csv.reader(f))

        alone = rows()
        self.assertGreater(len(alone), 80)
        for i in range(3):
            self.start_node("--job", "worker", "--name", f"n{i + 1}", "--load", library("word_stages"))
        self.wait_nodes(3)
        for replicas in (1, 3, 4):
            self.assertEqual(rows("--cluster", self.cluster, "--on", "/job:worker", "--replicas", replicas), alone)
        self.assertEqual(rows("--cluster", self.cluster, "--on", "/node:n2"), alone)
        self.assertEqual(rows("--on", "/job:worker"), alone)
        self.nothing_runs()

    def test_stages_run_where_on_says(self):
        nodes = self.workers(3)
        pids = [str(n.process.pid) for n in nodes]

        def ran(*arguments, **more):
            return {line.split()[0]: int(line.split()[1]) for line in self.far("pids", *arguments, **more).out.splitlines()}

        self.assertEqual(ran(on="/node:n2"), {pids[1]: 1000})
        self.assertEqual(len(ran(on="/job:worker/task:2")), 1)
        shared = ran("--replicas", 3)
        self.assertEqual(set(shared), set(pids))
        self.assertEqual(sum(shared.values()), 1000)
        alone = self.run_program("far_topologies", "pids", "--quiet", "--on", "/job:worker")
        self.assertEqual((alone.code, alone.out.split()[1]), (0, "1000"), alone.tail())

    def test_order_and_values_are_those_of_one_process(self):
        self.workers(3)
        wanted = [str(x * 21) for x in range(20000)]
        for arguments in (["--replicas", 4], ["--replicas", 3, "--then-on", "/node:n2"], ["--then-on", "/node:n1"]):
            p = self.far("scale", "--number", 7, "--items", 20000, *arguments)
            self.assertEqual(p.out.splitlines(), wanted)
        self.assertEqual(self.far("scale", "--items", 0).out, "")
        # Larger than what an edge may hold, and than a frame of many.
        for size in (0, 1, 300_000, 9_000_000):
            p = self.far("tensors", "--number", size, "--items", 20, "--then-on", "/node:n3")
            self.assertEqual(p.out.split(), [str(x * size) for x in range(20)])
        p = self.far("tensors", "--number", 1_000_000, "--items", 20, "--replicas", 2, "--memory", "2MiB")
        self.assertEqual(p.out.split(), [str(x * 1_000_000) for x in range(20)])
        p = self.run_program("far_topologies", "end", "--cluster", self.cluster, "--on", "/job:worker", "--replicas", 2)
        self.assertEqual(p.code, 0, p.tail())
        taken = {m[1]: int(m[2]) for m in re.finditer(r"^(swallow/\d) +(\d+)", p.err, re.M)}
        self.assertEqual(sum(taken.values()), 1000, p.err)

    def colour_model(self):
        """colour.onnx: which of three colours a picture has most of."""
        weights = [float(i % 3 == k) for i in range(32 * 32 * 3) for k in range(3)]
        with open(self.path("colour.onnx"), "wb") as f:
            f.write(onnx_run.model([onnx_run.node("Flatten", ["x"], ["f"]), onnx_run.node("MatMul", ["f", "w"], ["y"])],
                                   [onnx_run.port("x", ["N", 32, 32, 3])], [onnx_run.port("y", ["N", 3])],
                                   weights={"w": ([32 * 32 * 3, 3], weights)}))

    def test_a_model_in_a_file_runs_on_nodes_without_a_library(self):
        os.makedirs(self.path("in"))
        colours = [(250, 10, 30), (9, 180, 70), (0, 0, 99)]
        for i in range(40):
            with open(self.path(f"in/{i:02}.png"), "wb") as f:
                f.write(png(colours[i % 3]))
        self.colour_model()

        def labels(*arguments, model="colour.onnx", code=0):
            p = self.run_program("classify_images", self.path("in/*.png"), "--labels", self.path("labels.csv"), "--failures", self.path("failures.csv"),
                                 "--model", self.path(model), "--quiet", *arguments)
            self.assertEqual(p.code, code, p.tail())
            if code != 0:
                return p.err
            with open(self.path("labels.csv"), newline="") as f:
                return [row[1] for row in csv.reader(f)][1:]

        wanted = [f"class {i % 3}" for i in range(40)]
        self.assertEqual(labels(), wanted)
        for i in range(2):
            self.start_node("--job", "worker", "--name", f"n{i + 1}")
        self.wait_nodes(2)
        far = ["--cluster", self.cluster, "--on", "/job:worker"]
        self.assertEqual(labels(*far), wanted)
        # Told by the node, before anything runs.
        self.assertRegex(labels(*far, model="none.onnx", code=NOT_FOUND), r"classify_images: model \(classify_images\.cpp:\d+\): it cannot begin: .*none\.onnx")

    def test_a_program_whose_stages_are_on_nodes_goes_on_where_it_was(self):
        self.workers(2)
        os.makedirs(self.path("in"))
        colours = [(250, 10, 30), (9, 180, 70), (0, 0, 99)]
        for i in range(1000):
            with open(self.path(f"in/{i:03}.png"), "wb") as f:
                f.write(png(colours[i % 3]) if i % 50 else b"no picture")
        self.colour_model()
        command = ["classify_images", self.path("in/*.png"), "--labels", self.path("labels.csv"), "--failures", self.path("failures.csv"), "--quiet",
                   "--model", self.path("colour.onnx"), "--cluster", self.cluster, "--on", "/job:worker", "--checkpoint", self.path("kept"),
                   "--checkpoint-every", "10ms", "--resume"]
        kept, ended = self.path("kept/classify_images.checkpoint"), []
        while not ended or ended[-1] != 0:
            before = self.inode(kept)
            p = self.start(*command)
            self.until("it is kept once more, or done", lambda: not p.is_running() or self.inode(kept) not in (None, before))
            if len(ended) < 6:
                p.send(signal.SIGKILL if len(ended) % 2 else signal.SIGTERM)
            ended.append(p.wait())
            self.assertIn(ended[-1], (0, -signal.SIGKILL, 128 + signal.SIGTERM), p.tail())
        with open(self.path("labels.csv"), newline="") as f:
            self.assertEqual([row[1] for row in csv.reader(f)][1:], [f"class {i % 3}" for i in range(1000) if i % 50])
        with open(self.path("failures.csv"), newline="") as f:
            # Once each; replicas give up an item when they are at it, so in no order.
            self.assertEqual(sorted(row[3] for row in list(csv.reader(f))[1:]), [self.path(f"in/{i:03}.png") for i in range(0, 1000, 50)])

    # --- failures -----------------------------------------------------------------------------------------------------

    def test_a_stage_that_throws_on_a_node_is_told_in_one_line(self):
        self.workers(2)
        p = self.far("doom", "--number", 1000, "--items", 2000, on="/node:n2", code=FAILED)
        self.assertRegex(p.err, r"^far: doom \(far_topologies\.cpp:\d+\): item 0 of make: item of doom; on n2$")
        self.nothing_runs()
        p = self.far("skip", "--number", 100, "--items", 1000, "--replicas", 2)
        lines = p.out.splitlines()
        letters = [line for line in lines if " " in line]
        self.assertEqual(sorted(int(line.split()[2]) for line in letters), list(range(0, 1000, 100)))
        self.assertTrue(all(re.fullmatch(r"doom/[01] make \d+ item of doom", line) for line in letters), letters)
        self.assertEqual([int(line) for line in lines if " " not in line], [x for x in range(1000) if x % 100])

    def test_what_nodes_lack_is_told(self):
        for name in ("n1", "n2"):
            self.start_node("--job", "worker", "--name", name)
        self.wait_nodes(2)
        p = self.far("scale", "--replicas", 2, code=NOT_FOUND)
        for name in ("n1", "n2"):
            self.assertRegex(p.err, rf"{name} has no stage library far_stages; scale/[01] \(far_topologies\.cpp:\d+\) is to run there: "
                                    r"start it with --load FILE, the library's")
        p = self.far("scale", on="/job:nobody", code=UNREACHABLE)
        self.assertRegex(p.err, r"far_topologies\.cpp:\d+: scale: no node is /job:nobody: there are n\d \(/job:worker/task:0\), n\d \(/job:worker/task:1\)")
        p = self.far("scale", on="anywhere", code=USAGE)
        self.assertRegex(p.err, r"far_topologies\.cpp:\d+: scale: \.on: ")

    def test_a_signal_ends_the_wait_for_nodes(self):
        self.workers(1)
        p = self.start_far("scale", "--timeout", "60s", on="/job:nobody")
        self.until("it is a member", lambda: len(self.list("nodes")) == 2)
        p.send(signal.SIGINT)
        self.assertEqual(p.wait(), 130, p.tail())
        self.assertIn("stopped while it waited for nodes", p.err)

    def test_files_that_are_no_stage_library_are_refused(self):
        p = self.run_program("troupe-node", "--cluster", self.cluster, "--load", self.path("none.so"))
        self.assertEqual(p.code, NOT_FOUND, p.tail())
        with open(self.path("text.so"), "w") as f:
            f.write("no library")
        p = self.run_program("troupe-node", "--cluster", self.cluster, "--load", self.path("text.so"))
        self.assertEqual(p.code, USAGE, p.tail())

    def runs(self, p, stage, steps):
        """Once that stage of the program has done so much."""
        self.until("it runs", lambda: [a for a in self.list("actors") if a["name"].startswith(stage) and a["steps"] > steps and a["state"] != "ended"],
                   progress=lambda: self.assertTrue(p.is_running(), p.tail()))

    def drained(self, p):
        """Ends a topology that makes numbers without end: what came is whole, whatever was killed."""
        p.send(signal.SIGINT)
        self.assertEqual(p.wait(), 130, p.tail())
        numbers = [int(line) for line in p.out.splitlines()]
        self.assertEqual(numbers, list(range(len(numbers))))
        self.assertEqual(len(numbers) % 3, 0)
        return len(numbers)

    def test_what_a_killed_node_had_is_made_again_once_and_in_order(self):
        nodes = self.workers(3)
        forever = ["thrice", "--number", 300, "--items", 1 << 40, "--replicas", 3]
        p = self.start_far(*forever)
        self.runs(p, "slow/1", 300)
        nodes[1].send(signal.SIGKILL)
        self.until("it is told", lambda: "was lost" in p.err)
        self.assertRegex(p.err, r"^far: n2 was lost \(.*\); slow/[012], thrice/[012] ran there: what it had is made again$")
        self.assertGreater(self.drained(p), 3 * 300)
        self.nothing_runs()
        # One after the other, until nobody is left but the program.
        p = self.start_far(*forever)
        self.runs(p, "slow/1", 100)
        nodes[0].send(signal.SIGKILL)
        self.until("it is told", lambda: "n1 was lost" in p.err)
        nodes[2].send(signal.SIGKILL)
        self.until("it is told", lambda: "n3 was lost" in p.err)
        self.runs(p, "slow/spare", 100)
        self.assertGreater(self.drained(p), 3 * 200)
        self.assertEqual(len(p.lines["err"]), 2, p.tail())

    def test_state_survives_its_node(self):
        """Nodes are killed until nobody is left but the program; TROUPE_KILLS: how many in all."""
        for kill in range(0, int(os.environ.get("TROUPE_KILLS", 3)), 3):
            nodes = self.workers(3)
            p = self.start_far("sums", "--number", 100, "--items", 1 << 40, "--replicas", 3)
            for i in (1, 0, 2) if kill % 2 == 0 else (2, 1, 0):
                self.runs(p, "print", 3000 * (1 + len(p.lines["err"])))
                nodes[i].send(signal.SIGKILL)
                self.until("it is told", lambda: f"n{i + 1} was lost" in p.err)
            self.runs(p, "adds_up_well/0/spare", 100)
            p.send(signal.SIGINT)
            self.assertEqual(p.wait(), 130, p.tail())
            sums, wanted = [0] * 10, []
            for x in range(len(p.out.splitlines())):
                sums[x % 10] += x
                wanted.append(sums[x % 10])
            self.assertEqual([int(line) for line in p.out.splitlines()], wanted)
            self.assertGreater(len(wanted), 9000)
            self.assertEqual(len(p.lines["err"]), 3, p.tail())
            for node in nodes:
                node.wait()

    def test_what_is_made_at_the_end_survives_too(self):
        nodes = self.workers(2)
        p = self.start_far("counts", "--number", 100, "--items", 20_000, "--replicas", 2)
        self.runs(p, "slow", 3000)
        nodes[1].send(signal.SIGKILL)
        self.assertEqual(p.wait(), 0, p.tail())
        self.assertEqual(len(p.out.split()), 2)
        self.assertEqual(sum(int(n) for n in p.out.split()), 20_000)

    def test_a_node_with_state_that_is_killed_ends_it_with_a_line(self):
        nodes = self.workers(2)
        p = self.start_far("add_up", "--number", 500, "--items", 1 << 40, "--then-on", "/node:n1", on="/node:n2")
        self.runs(p, "add_up", 100)
        nodes[1].send(signal.SIGKILL)
        self.assertEqual(p.wait(), FAILED, p.tail())
        self.assertRegex(p.err, r"^far: n2 was lost \(.*\); add_up ran there; what add_up had learnt is lost: "
                                r"a stage that keeps it in a member `state` survives$")
        self.nothing_runs()
        self.assertEqual(self.far("scale", "--number", 1, "--items", 3).out.split(), ["0", "3", "6"])

    def test_parts_end_with_their_program(self):
        self.workers(2)
        p = self.start_far("slow", "--number", 500, "--items", 1 << 40, "--replicas", 2)
        self.runs(p, "slow/1", 100)
        p.send(signal.SIGKILL)
        p.wait()
        self.nothing_runs()
        self.assertEqual({(j["state"], j["cause"]) for j in self.list("jobs")}, {("failed", "its program was lost")})
        self.assertEqual(self.far("scale", "--number", 1, "--items", 3).out.split(), ["0", "3", "6"])

    def test_a_signal_drains_all_processes(self):
        self.workers(2)
        for replicas in (1, 3):
            p = self.start_far("slow", "--number", 200, "--items", 1 << 40, "--replicas", replicas)
            self.runs(p, "slow", 100)
            p.send(signal.SIGINT)
            self.assertEqual(p.wait(), 130, p.tail())
            numbers = [int(line) for line in p.out.splitlines()]
            self.assertEqual(numbers, list(range(len(numbers))))
            self.assertGreater(len(numbers), 100)
            self.nothing_runs()

    # --- tools --------------------------------------------------------------------------------------------------------

    def test_tools_know_where_stages_run_and_which_one_hangs(self):
        nodes = self.workers(2)
        p = self.start_far("hang", "--number", 50, "--items", 1 << 40, on="/node:n2")
        self.until("it hangs", lambda: any(a["name"] == "hang" and a["state"] == "running" and a["since_seconds"] > 1.5
                                           for a in self.list("actors")))
        stages = {a["name"]: a for a in self.list("actors") if a["kind"] == "stage" and a["state"] != "ended"}
        self.assertEqual(stages["hang"]["node"], "n2")
        self.assertEqual({name for name in stages if "/" not in name}, {"make", "hang", "print"})
        self.assertNotIn(stages["make"]["node"], ("n1", "n2"))
        said = self.tool("why")
        self.assertRegex(said, r"stage hang")
        self.assertIn(" runs, for ", said)
        jobs = [j for j in self.list("jobs") if j["state"] == "running"]
        self.assertEqual([j["name"] for j in jobs], ["far"])
        self.assertIn("n2", jobs[0]["participants"])
        # The first one drains, in vain; the second one ends it, whoever still works.
        p.send(signal.SIGTERM)
        self.until("it is told", lambda: self.tool("why") and p.is_running())
        while p.is_running():
            p.send(signal.SIGTERM)
        self.assertNotEqual(p.wait(), 0)
        # Nothing else ends a stage that does not come back.
        nodes[1].send(signal.SIGKILL)


if __name__ == "__main__":
    harness.main()
