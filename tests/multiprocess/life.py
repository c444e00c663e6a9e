#!/usr/bin/env python3
"""What is told of a cluster's life: troupe events, troupe logs and the logs of nodes: life.py BIN_FOLDER"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess

import harness


class life(harness.cluster_test):
    def events(self, *arguments):
        return json.loads(self.tool("events", "--json", *arguments, codes=(0, 4)))

    def kinds(self, *arguments):
        return [e["kind"] for e in self.events(*arguments)]

    def end_of(self, follower, number=signal.SIGINT):
        follower.send(number)
        self.assertEqual(follower.wait(), 0, follower.tail())

    def test_each_happening_is_listed_once(self):
        nodes = self.start_nodes(3)
        for i in range(3):
            self.train("--workers", 2, "--epochs", 1, "--data", self.make_data(), "--name", f"job{i}", "--json")
        self.until("the end of each job is listed", lambda: self.kinds().count("job done") >= 3)
        # Three nodes, and three clients whose own events are gone with them.
        self.assertEqual(self.kinds().count("job began"), 3)
        self.assertEqual(self.kinds().count("job done"), 3)
        self.assertEqual(self.kinds().count("member joined"), 6)
        of_one = self.events("--job", "job1")
        self.assertEqual([e["kind"] for e in of_one if e["kind"] in ("job began", "job done")], ["job began", "job done"])
        self.assertEqual({e["job"] for e in of_one}, {"job1"})
        nodes[2].send(signal.SIGKILL)
        self.until("a node is lost", lambda: "member lost" in self.kinds())
        self.assertEqual([e["level"] for e in self.events("--level", "warning") if e["kind"] == "member lost"], ["warning"])
        text = self.tool("events", codes=(0, 4))
        for line in text.splitlines():
            self.assertRegex(line, r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  (info|warning|error)  +\S+ +\S.*")

    def test_what_is_followed_comes_once_and_ends_with_Ctrl_C(self):
        self.start_nodes(1)
        follower = self.start("troupe", "--cluster", self.cluster, "events", "--follow", "--json")
        follower.line("member joined")
        second = self.start_nodes(1)[0]
        name = self.name_of(second)
        follower.line(f"{name} joined")
        second.send(signal.SIGTERM)
        self.assertEqual(second.wait(), 0, second.tail())
        follower.line(f"{name} has left")
        self.train("--epochs", 1, "--data", self.make_data(), "--name", "short", "--json")
        follower.line("job short is over: done")
        self.end_of(follower)
        seen = [json.loads(line) for line in follower.lines["out"]]
        once = [(e["kind"], e["about"]) for e in seen if e["about"]]
        self.assertEqual(len(once), len(set(once)), once)
        numbers = [(e["node_id"], e["number"]) for e in seen]
        self.assertEqual(len(numbers), len(set(numbers)))

    def test_a_node_that_rejoins_tells_of_its_former_life_once(self):
        first = self.start_nodes(1, "--lease", "1s")[0]
        other = self.start_node("--lease", "1s", "--name", "sleeper")
        self.address(other)
        self.wait_nodes(2)
        follower = self.start("troupe", "--cluster", self.cluster, "--join", self.address(first), "events", "--follow", "--json")
        follower.line("sleeper joined")
        other.send(signal.SIGSTOP)
        follower.line("sleeper is dead")
        other.send(signal.SIGCONT)
        follower.line("node rejoined")
        # Some more looks, which end with something that is seen.
        for i in range(3):
            another = self.start_node("--lease", "1s", "--name", f"another{i}")
            follower.line(f"another{i} joined")
            self.address(another)
        self.end_of(follower)
        seen = [json.loads(line) for line in follower.lines["out"]]
        numbers = [(e["node_id"], e["number"]) for e in seen]
        self.assertEqual(len(numbers), len(set(numbers)), sorted(numbers))

    def test_a_member_is_forgotten_once_in_the_list(self):
        nodes = self.start_nodes(3)
        name = self.name_of(nodes[2])
        nodes[2].send(signal.SIGKILL)
        self.until("the node is lost", lambda: "member lost" in self.kinds())
        self.tool("cluster", "forget", name)
        asked = lambda: [e["text"] for e in self.events() if f"a tool asked for 'forget {name}'" in e["text"]]
        self.until("that is noted", asked)
        self.assertEqual(len(asked()), 1, asked())

    def test_a_coordinator_that_dies_is_one_recovery(self):
        first = self.start_nodes(3)[0]
        training = self.start_training("--workers", 2, "--epochs", harness.ENDLESS, "--data", self.make_data(), "--name", "ov", "--on-failure", "resume",
                                       "--checkpoint", self.path("checkpoints"), "--checkpoint-every", "200ms", "--outlive")
        self.until_step(training, "ov", 20)
        training.send(signal.SIGKILL)
        training.wait()
        of = lambda kind: [e for e in self.events("--job", "ov") if e["kind"] == kind]
        self.until("the job goes on", lambda: len(of("job recovered")) >= 1)
        self.assertEqual(len(of("job recovering")), 1, of("job recovering"))
        self.assertEqual(len(of("job recovered")), 1, of("job recovered"))
        self.assertEqual(len(of("job moved")), 1, of("job moved"))
        self.tool("job", "stop", "ov")
        self.until("it has ended", lambda: of("job stopped"))

    def test_nothing_but_JSON_is_on_stderr(self):
        node = self.start_node("--insecure", "--log-format", "json")
        self.address(node)
        node.line("--insecure: connections", "err")
        node.send(signal.SIGTERM)
        self.assertEqual(node.wait(), 0, node.tail())
        for line in node.err.splitlines():
            json.loads(line)
        self.assertIn('"level":"warning"', node.err)

    def test_events_of_nobody_are_not_found(self):
        self.start_nodes(1)
        for flag in ("--job", "--node"):
            p = self.run_program("troupe", "--cluster", self.cluster, "events", flag, "nobody")
            self.assertEqual(p.code, 6, p.tail())
            self.assertIn(f"there is no {flag[2:]} 'nobody'", p.err)

    def test_the_whole_cluster_may_go_and_come_back(self):
        first = self.start_nodes(1)[0]
        at = self.address(first)
        follower = self.start("troupe", "--cluster", self.cluster, "--join", at, "events", "--follow")
        follower.line("joined")
        first.send(signal.SIGKILL)
        follower.line("asked again until it answers", "err")
        self.start_node("--listen", at, "--name", "another")
        follower.line("another joined")
        self.end_of(follower, signal.SIGTERM)

    def test_the_log_of_a_node_and_of_a_job(self):
        self.start_nodes(2, "--log-level", "debug")
        names = [self.name_of(n) for n in self.nodes]
        self.assertIn(" joined: ", self.tool("logs", names[0]))
        self.train("--workers", 2, "--epochs", 1, "--data", self.make_data(), "--name", "logged", "--json")
        self.until("the end is logged by both", lambda: self.tool("logs", "logged").count("job logged is over: done") >= 2)
        log = self.tool("logs", "logged")
        self.assertEqual(log.splitlines(), sorted(log.splitlines(), key=lambda line: line[:24]))
        self.assertNotIn("joined", log)
        self.assertEqual({line.split()[2] for line in log.splitlines()}, set(names))
        self.assertIn("no node and no job 'nobody'", self.start_and_fail("logs", "nobody"))
        for node in self.nodes:
            self.assertEqual(self.complaints(node), [])
            self.until("the log is on stderr, too", lambda: "job logged is over: done" in node.err)

    def start_and_fail(self, *arguments):
        p = self.run_program("troupe", "--cluster", self.cluster, *arguments)
        self.assertEqual(p.code, 6, p.tail())
        return p.err

    def test_a_log_in_a_file_is_made_anew_after_SIGHUP(self):
        path = self.path("node.log")
        node = self.start_node("--log-to", f"file:{path}", "--log-format", "json", "--name", "filed")
        self.address(node)
        read = lambda p: pathlib.Path(p).read_text(encoding="utf-8")
        self.until("the node has written", lambda: "listens at" in read(path))
        for line in read(path).splitlines():
            entry = json.loads(line)
            self.assertRegex(entry["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
            self.assertEqual(entry["node"], "filed")
        os.rename(path, path + ".1")
        node.send(signal.SIGHUP)
        self.until("the file is there again", lambda: os.path.exists(path))
        self.start_nodes(1)
        self.until("it gets lines", lambda: " joined: " in read(path))
        node.send(signal.SIGTERM)
        self.assertEqual(node.wait(), 0, node.tail())
        self.assertEqual(node.err, "")
        self.assertEqual(len(node.lines["out"]), 1)

    def test_a_node_without_room_for_its_log_goes_on(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("this system has no /dev/full")
        node = self.start_node("--log-to", "file:/dev/full")
        self.address(node)
        self.train("--epochs", 1, "--data", self.make_data(), "--name", "unlogged", "--json")
        node.send(signal.SIGTERM)
        self.assertEqual(node.wait(), 0, node.tail())

    def test_a_node_whose_stderr_nobody_reads_goes_on(self):
        read, write = os.pipe()
        node = subprocess.Popen([os.path.join(harness.BIN, "troupe-node"), "--cluster", self.cluster, "--log-level", "trace"],
                                env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=write, text=True)
        try:
            os.set_blocking(write, False)
            filled = 0
            while filled < (1 << 20):
                try:
                    filled += os.write(write, b"x" * 512)
                except BlockingIOError:
                    break
            self.assertTrue(node.stdout.readline().startswith("listening "))
            self.wait_nodes(1)
            node.send_signal(signal.SIGTERM)
            self.assertEqual(node.wait(timeout=harness.HANG), 0)
        finally:
            node.kill()
            node.wait()
            node.stdout.close()
            os.close(read)
            os.close(write)

    def test_a_node_whose_log_is_a_pipe_that_nobody_reads_ends(self):
        path = self.path("pipe")
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            node = self.start_node("--log-to", f"file:{path}", "--log-level", "trace")
            self.address(node)
            filler = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            with contextlib.suppress(BlockingIOError):
                for _ in range(1 << 20):
                    os.write(filler, b"x" * 512)
            os.close(filler)
            node.send(signal.SIGHUP)
            self.wait_nodes(1)
            node.send(signal.SIGTERM)
            self.assertEqual(node.wait(), 0, node.tail())
        finally:
            os.close(reader)

    def test_mistakes_in_flags_of_logs(self):
        os.mkfifo(self.path("unread"))
        for flags, says, code in ((["--log-level", "loud"], "--log-level", 2), (["--log-format", "xml"], "--log-format", 2),
                                  (["--log-to", "moon"], "'moon' is no place for a log; there are stderr, file:PATH and journal", 2),
                                  (["--log-to", "file:" + self.path("unread")], "is a pipe or socket, and nobody reads it", 2),
                                  (["--log-to", "file:" + self.path("no/log")], "No such file or directory; give a file in a folder", 6)):
            p = self.run_program("troupe-node", "--cluster", self.cluster, *flags)
            self.assertEqual(p.code, code, p.tail())
            self.assertIn(says, p.err)
            self.assertEqual(len(p.lines["err"]), 1, p.tail())


if __name__ == "__main__":
    harness.main()
