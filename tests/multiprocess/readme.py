#!/usr/bin/env python3
"""What the README shows is true: its commands run, in its order, and its C++ trains: readme.py BIN_FOLDER

Of a command nothing is changed but the folder of the programs and the id of an actor, which nobody can know before.
"""

import os
import re
import shlex

import harness

README = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "README.md")
SHOWN_ELSEWHERE = ("tools/quickstart", "tools/test")  # the quickstart has a test of its own, and this is the other


def commands():
    """The lines of the README that are indented as code."""
    with open(README) as f:
        lines = f.read().splitlines()
    return [line.strip().split(" #")[0].strip() for line in lines if re.match(r"    (build/bin|tools)/", line)]


class readme(harness.cluster_test):
    def test_every_command_runs(self):
        os.rename(self.make_data(), self.path("fashion-mnist"))
        ran = 0
        for command in commands():
            if command in SHOWN_ELSEWHERE:
                continue
            with self.subTest(command):
                self.run_command(command)
                ran += 1
        self.assertGreater(ran, 8)

    def run_command(self, command):
        command, _, file = command.partition(" > ")
        in_background = command.endswith("&")
        program, *arguments = shlex.split(command.rstrip("& "))
        self.assertTrue(program.startswith("build/bin/"), command)
        if arguments[:2] == ["show", "actor"]:
            self.assertRegex(arguments[2], r"^\w+[.]")
            arguments[2] = next(a["id"] for a in self.list("actors") if a["kind"] == "node")
        p = self.start(os.path.basename(program), *[self.path(a) if a == "fashion-mnist" else a for a in arguments])
        if in_background:
            self.nodes.append(p)
            self.address(p)
            self.cluster = "default"  # of this test's own runtime folder
            self.wait_nodes(len(self.nodes))
            return
        self.assertEqual(p.wait(), 0, p.tail())
        if file.endswith(".svg"):
            self.assertTrue(p.out.startswith("<svg"), p.out[:100])
        self.assertTrue(p.out, command)

    def test_its_program_trains(self):
        p = self.run_program("readme_example", self.make_data())
        self.assertEqual(p.code, 0, p.tail())
        first, last = map(float, p.out.split())
        self.assertLess(last, first)


if __name__ == "__main__":
    harness.main()
