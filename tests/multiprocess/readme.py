#!/usr/bin/env python3
"""What the README shows is true: its commands run, in its order, and its C++ trains: readme.py BIN_FOLDER

Of a command nothing is changed but the folder of the programs, the ids of an actor and a node, which nobody can know before, the
network: what stands there for several machines runs on several addresses of this one, and the lease of those that nobody stops. For what is
asked of a training that runs, one runs.
"""

import os
import re
import shlex
import signal
import socket
import subprocess

import harness

README = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "README.md")
SHOWN_ELSEWHERE = ("tools/quickstart", "tools/test", "tools/chaos")  # two have tests of their own, and this is the other
OWN_PATHS = ("fashion-mnist", "checkpoints", "model.troupe", "kept", "logs/*.txt", "counts.csv")


def commands():
    """The lines of the README that are indented as code."""
    with open(README) as f:
        lines = f.read().splitlines()
    return [line.strip().split(" #")[0].strip() for line in lines if re.match(r"    (build/bin|tools)/|    \(", line)]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.4", 0))
        return s.getsockname()[1]


class readme(harness.cluster_test):
    def test_every_command_runs(self):
        os.rename(self.make_data(), self.path("fashion-mnist"))
        os.makedirs(self.path("logs"))
        with open(self.path("logs/a.txt"), "w", encoding="utf-8") as f:
            f.write("one and one\n")
        self.port, self.lab, ran = free_port(), 0, 0
        for command in commands():
            if command.startswith(SHOWN_ELSEWHERE):
                continue
            with self.subTest(command):
                self.run_command(command)
                ran += 1
        self.assertGreater(ran, 8)

    def run_command(self, command):
        if command.startswith("("):
            return subprocess.run(["bash", "-c", command], cwd=self.folder.name, check=True,
                                  timeout=harness.HANG)
        command = command.replace("10.0.0.", "127.0.0.").replace(":7000", f":{self.port}").replace("--token-file token", f"--token-file {self.path('token')}")
        command, _, file = command.partition(" > ")
        in_background = command.endswith("&")
        program, *arguments = shlex.split(command.rstrip("& "))
        self.assertTrue(program.startswith("build/bin/"), command)
        if arguments[:2] == ["show", "actor"]:
            self.assertRegex(arguments[2], r"^\w+[.]")
            arguments[2] = next(a["id"] for a in self.list("actors") if a["kind"] == "node")
        if arguments[:2] == ["cluster", "leave"]:
            arguments[2] = self.name_of(self.nodes.pop())
        training = None
        if arguments[:2] == ["checkpoint", "make"] or "--slow" in arguments:
            training = self.start_training("--on-failure", "resume", "--checkpoint", self.path("others"), "--epochs", 1_000_000,
                                           "--data", self.path("fashion-mnist"), "--name", (arguments + ["slow"])[2])
            self.until("it trains", lambda: self.is_training(training))  # others of that name are over
        program = os.path.basename(program)
        lease = self.own_lease(arguments) if program == "troupe-node" or "--cluster" in arguments and program == "train_classifier" else ()
        p = self.start(program, *[self.path(a) if a in OWN_PATHS else a for a in arguments], *lease)
        if in_background and arguments[:1] == ["serve"]:
            self.assertIsNotNone(p.line(r"^http://127\.0\.0\.1:\d+$"), p.tail())
            return
        if in_background:
            self.address(p)
            if "--cluster" in arguments:
                self.lab += 1
                waited = self.run_program("troupe", "--cluster", "lab", "--join", f"127.0.0.4:{self.port}", "--token-file", self.path("token"),
                                          "wait", f"nodes={self.lab}", "--timeout", "60s")
                self.assertEqual(waited.code, 0, waited.tail())
            else:
                self.nodes.append(p)
                self.cluster = "default"  # of this test's own runtime folder
                self.wait_nodes(len(self.nodes))
            return
        self.assertEqual(p.wait(), 0, p.tail())
        if file.endswith(".svg"):
            self.assertTrue(p.out.startswith("<svg"), p.out[:100])
        if "counts.csv" in arguments:
            with open(self.path("counts.csv"), encoding="utf-8") as f:
                self.assertEqual(f.read(), "word,count\nand,1\none,2\n")
        else:
            self.assertTrue(p.out, command)
        if training:
            training.send(signal.SIGINT)
            training.wait()

    def is_training(self, training):
        self.assertTrue(training.is_running(), training.tail())
        return any(j["state"] == "running" and j["step"] > 0 for j in self.list("jobs"))

    def test_its_program_trains(self):
        p = self.run_program("readme_example", self.make_data())
        self.assertEqual(p.code, 0, p.tail())
        first, last = map(float, p.out.split())
        self.assertLess(last, first)


if __name__ == "__main__":
    harness.main()
