#!/usr/bin/env python3
"""A graph that is run by feeds and fetches, on the nodes that its devices name: graphs.py BIN_FOLDER"""

import re
import signal

import harness

USAGE = 2
ENDLESS = 10_000_000  # requests: certainly still running


class graphs(harness.cluster_test):
    def serve(self, *arguments, code=0):
        p = self.run_program("serve_over_nodes", *arguments, "--json")
        self.assertEqual(p.code, code, f"serve_over_nodes {' '.join(map(str, arguments))}\n{p.tail()}")
        return self.json_of(p) if code == 0 else p.err

    def start_halves(self, seconds=1):
        """A node for the first half of the layers, and some that can have the second."""
        first = self.start_node("--label", "half=first", "--name", "one")
        self.address(first)
        others = [self.start_node("--label", "half=second", "--name", f"two-{i}") for i in range(seconds)]
        self.wait_nodes(1 + seconds)
        return first, others

    def over_nodes(self, first="/label:half=first", second="/label:half=second"):
        return "--cluster", self.cluster, "--first", first, "--second", second

    def test_answers_are_those_of_one_process(self):
        self.start_halves()
        for model in ((), ("--layers", 7, "--width", 33, "--batch", 5)):
            here = self.serve(*model)
            for where in ({}, {"first": "/node:one", "second": "/node:two-0"}, {"second": "/job:client"}):
                there = self.serve(*self.over_nodes(**where), *model)
                self.assertEqual((there["answered"], there["sum"]), (here["answered"], here["sum"]), where)
                self.assertEqual(there["failed"], 0)
        self.until("all jobs have ended", lambda: {j["state"] for j in self.list("jobs")} == {"done"})

    def test_a_device_that_nobody_has_is_a_usage_error_with_the_line(self):
        self.start_halves()
        for where in (("--second", "/job:moon/task:7"), ("--cluster", self.cluster, "--second", "/node:three"),
                      ("--cluster", self.cluster, "--second", "/label:half=third")):
            said = self.serve(*where, code=USAGE)
            self.assertRegex(said, rf"^serve_over_nodes: \S*serve_over_nodes\.cpp:\d+: there is no task for device '{where[-1]}'; tasks are ")
        self.assertIn("/job:worker/task:0 (one, half=first)", said)
        for flag, value in (("--name", "a b"), ("--label", "rack"), ("--label", "=3")):
            p = self.run_program("troupe-node", "--cluster", self.cluster, flag, value)
            self.assertEqual(p.code, USAGE, p.tail())
            self.assertIn(flag, p.err)

    def test_the_tool_shows_names_and_labels(self):
        self.start_halves()
        nodes = {n["name"]: n["labels"] for n in self.list("nodes")}
        self.assertEqual(nodes, {"one": ["half=first"], "two-0": ["half=second"]})
        self.assertRegex(self.run_program("troupe", "--cluster", self.cluster, "show", "node", "one").out, r"(?m)^labels +half=first$")

    def fails_and_goes_on(self, how):
        """The one of two nodes that has the second half is struck: the runs under way fail, each with its name, and the next are those of the
        other."""
        _, others = self.start_halves(2)
        p = self.start("serve_over_nodes", *self.over_nodes(), "--threads", 4, "--requests", ENDLESS)
        self.assertIsNotNone(p.line(r"^serving: ", "err"), p.tail())
        busy = self.job("serving")["participants"]
        name = next(n for n in busy if n.startswith("two-"))
        node = others[0] if self.name_of(others[0]) == name else others[1]
        node.send(how)
        other = "two-1" if name == "two-0" else "two-0"
        self.until("the other one has it", lambda: other in (self.job("serving") or {}).get("participants", []))
        self.assertTrue(p.is_running(), p.tail())
        said = p.lines["err"][1:]
        self.assertTrue(said, p.tail())
        for line in said:
            # Who asks again before the client has heard of the death is told that the node is not there.
            self.assertRegex(line, rf"^serve_over_nodes: \d+ ms after it was asked: .*(\b{name}\b|is not known here|has no link to)")
        self.assertTrue(any(name in line for line in said), said)
        for at in re.findall(r": (\d+) ms after", "\n".join(said)):
            print(f"noticed {how.name} {at} ms", flush=True)
        p.send(signal.SIGKILL)
        p.wait()

    def test_a_killed_node_costs_the_runs_under_way(self):
        self.fails_and_goes_on(signal.SIGKILL)

    def test_a_stopped_node_costs_the_runs_under_way(self):
        self.lease = None  # it is noticed by that
        self.fails_and_goes_on(signal.SIGSTOP)


if __name__ == "__main__":
    harness.main()
