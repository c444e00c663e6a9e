#!/usr/bin/env python3
"""Where nodes are reached: wildcards, announced addresses, machines (network namespaces) that do not reach each other: addresses.py BIN_FOLDER"""

import itertools
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import unittest

import harness

numbers = itertools.count(1)
UNREACHABLE, TIMED_OUT = 3, 4


class address_test(harness.cluster_test):
    def setUp(self):
        super().setUp()
        self.token = self.path("token")
        with open(self.token, "w") as f:
            f.write("0123456789abcdef" * 2 + "\n")
        os.chmod(self.token, 0o600)

    def start_apart(self, name, *arguments, where=()):
        """A program with a runtime folder of its own, as on another machine: it finds nobody by itself."""
        folder = self.path(f"machine{next(numbers)}")
        os.mkdir(folder, 0o700)
        program = harness.program([*where, os.path.join(harness.BIN, name), "--cluster", self.cluster, "--token-file", self.token, *map(str, arguments)],
                                  dict(self.environment, XDG_RUNTIME_DIR=folder, TMPDIR=folder))
        self.programs.append(program)
        return program

    def node_apart(self, *arguments, where=()):
        node = self.start_apart("troupe-node", "--lease", self.lease, "--gpus", "none", *arguments, where=where)
        node.port = int(self.address(node).rsplit(":", 1)[1])
        return node

    def ask(self, seed, *arguments, codes=(0,), where=()):
        done = self.start_apart("troupe", "--join", seed, *arguments, where=where)
        self.assertIn(done.wait(), codes, f"troupe {' '.join(map(str, arguments))}\n{done.tail()}")
        return done

    def nodes_seen(self, seed, where=()):
        said = self.ask(seed, "list", "nodes", "--json", codes=(0, TIMED_OUT), where=where).out
        return [n for n in json.loads(said) if n["kind"] == "node"] if said else []

    def is_whole(self, seed, count, where=()):
        met = self.ask(seed, "wait", f"nodes={count}", "--timeout", f"{harness.HANG:.0f}s", codes=(0, TIMED_OUT), where=where)
        if met.process.returncode != 0:
            listed, events = (self.ask(seed, *what, codes=(0, TIMED_OUT), where=where).out for what in (("list", "nodes", "--json"), ("events",)))
            self.fail(f"{met.err}\n{listed}\n{events}")
        listed = self.nodes_seen(seed, where)
        self.assertEqual(len(listed), count)
        for n in listed:
            self.assertEqual(n["state"], "alive")
            self.assertTrue({o["name"] for o in listed if o is not n} <= set(n["reaches"]), f"{n['name']} reaches {n['reaches']} only")
        return listed

    def trains_on(self, seed, workers, where=()):
        p = self.start_apart("train_classifier", "--join", seed, "--workers", workers, "--epochs", 1, "--data", self.make_data(300, 100), where=where)
        self.assertEqual(p.wait(), 0, p.tail())


class addresses(address_test):
    def test_nodes_at_wildcards_tell_the_address_by_which_they_have_met(self):
        first = self.node_apart("--listen", "0.0.0.0:0")
        seed = f"127.0.0.1:{first.port}"
        others = [self.node_apart("--listen", "0.0.0.0:0", "--join", seed) for _ in range(2)]
        listed = self.is_whole(seed, 3)
        self.assertEqual({n["address"] for n in listed}, {f"127.0.0.1:{n.port}" for n in (first, *others)})
        self.assertIn("tells others that it is reached at 127.0.0.1", self.ask(seed, "events").out)
        self.trains_on(seed, 2)

    def test_nodes_at_the_wildcard_of_IPv6(self):
        try:
            first = self.node_apart("--listen", "[::]:0")
        except AssertionError:
            self.skipTest("this machine has no IPv6")
        self.node_apart("--listen", "[::]:0", "--join", f"127.0.0.1:{first.port}")  # that wildcard has IPv4, too
        listed = self.is_whole(f"[::1]:{first.port}", 2)
        self.assertTrue(all(n["address"].startswith(("127.0.0.1:", "[::1]:")) for n in listed), listed)

    def test_an_announced_address_is_what_others_are_told(self):
        first = self.node_apart("--listen", "127.0.0.1:0", "--announce", "127.0.0.2:1")  # nobody listens there
        seed = f"127.0.0.1:{first.port}"
        second = self.node_apart("--listen", "0.0.0.0:0", "--announce", "127.0.0.2:0", "--join", seed)
        listed = self.is_whole(seed, 2)
        self.assertEqual({n["address"] for n in listed}, {"127.0.0.2:1", f"127.0.0.2:{second.port}"})
        # The way in is what was announced; of the first one it leads nowhere, yet that one dials.
        self.node_apart("--join", f"127.0.0.2:{second.port}")
        self.is_whole(seed, 3)
        self.trains_on(seed, 2)

    def test_nodes_that_do_not_reach_each_other_say_so(self):
        first = self.node_apart()
        seed = f"127.0.0.1:{first.port}"
        apart = [self.node_apart("--announce", f"127.0.0.3:{port}", "--join", seed) for port in (1, 2)]
        everybody = [a for n in apart for a in ("--join", f"127.0.0.1:{n.port}")]  # who announces nonsense is asked where it is
        said = lambda: self.ask(seed, *everybody, "events", codes=(0, TIMED_OUT)).out
        for port in (1, 2):
            # Its process is there, so nobody holds it dead for what it says of itself; after two seconds that is told.
            self.until(f"an event names 127.0.0.3:{port}", lambda: f"no connection to 127.0.0.3:{port}" in said())
        listed = {n["address"]: n for n in json.loads(self.ask(seed, *everybody, "list", "nodes", "--json", codes=(0, TIMED_OUT)).out)}
        for here, there in ((1, 2), (2, 1)):
            n, other = listed[f"127.0.0.3:{here}"], listed[f"127.0.0.3:{there}"]
            self.assertIn(listed[seed]["name"], n["reaches"], listed)
            self.assertNotIn(other["name"], n["reaches"])
            self.assertNotEqual(n["state"], "alive")
            self.assertIn(f"{other['name']} sees it as unreachable: no connection to {n['address']}", n["reason"])
        table = self.ask(seed, *everybody, "list", "nodes", codes=(0, TIMED_OUT)).out
        self.assertIn("REACHES", table)
        late = self.ask(seed, "wait", "nodes=3", "--timeout", "1s", codes=(TIMED_OUT,))
        self.assertIn("of 3 nodes are alive", late.err)

    def test_addresses_that_make_no_sense_are_refused(self):
        for announce, word in (("0.0.0.0:7000", "nobody can connect there"), ("[::]:7000", "nobody can connect there"), ("x", "--announce")):
            with self.subTest(announce):
                node = self.start_apart("troupe-node", "--announce", announce)
                self.assertEqual(node.wait(), 2, node.tail())
                self.assertIn(word, node.err)

    def test_a_short_token_is_refused_and_guesses_are_told(self):
        node = self.node_apart()
        seed = f"127.0.0.1:{node.port}"
        with open(self.token, "w") as f:
            f.write("sunshine7\n")
        short = self.start_apart("troupe", "--join", seed, "list", "nodes")
        self.assertEqual(short.wait(), 2, short.tail())
        self.assertIn("openssl rand -hex 32", short.err)
        with open(self.token, "w") as f:
            f.write("fedcba9876543210" * 2 + "\n")
        for _ in range(3):
            guess = self.start_apart("troupe", "--join", seed, "list", "nodes")
            self.assertEqual(guess.wait(), 5, guess.tail())
        with open(self.token, "w") as f:
            f.write("0123456789abcdef" * 2 + "\n")
        self.until("the events tell of it", lambda: "from 127.0.0.1 (wrong token" in self.ask(seed, "events").out)

    def test_a_name_is_looked_up_for_all_that_it_stands_for_and_again(self):
        """localhost stands for 127.0.0.1 and ::1: one of them is the node itself, and the other comes later."""
        first = self.node_apart("--listen", "127.0.0.1:0")
        name = f"dns:localhost:{first.port}"
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", first.port))
        except OSError:
            self.skipTest("no IPv6 on loopback, or its port is taken")
        second = self.start_apart("troupe-node", "--lease", self.lease, "--gpus", "none", "--listen", f"[::1]:{first.port}", "--join", name)
        self.address(second)
        listed = self.is_whole(name, 2)
        self.assertEqual({n["pid"] for n in listed}, {first.pid, second.pid})
        second.send(signal.SIGTERM)
        self.assertEqual(second.wait(), 0, second.tail())
        first.send(signal.SIGTERM)
        self.assertEqual(first.wait(), 0, first.tail())
        # Both know the name alone, and the first is there before the second is.
        early = self.start_apart("troupe-node", "--lease", self.lease, "--gpus", "none", "--listen", f"[::1]:{first.port}", "--join", name)
        self.address(early)
        late = self.start_apart("troupe-node", "--lease", self.lease, "--gpus", "none", "--listen", f"127.0.0.1:{first.port}")
        self.address(late)
        self.is_whole(f"127.0.0.1:{first.port}", 2)
        bad = self.start_apart("troupe-node", "--join", "dns:nowhere")
        self.assertEqual(bad.wait(), 2, bad.tail())
        self.assertIn("dns:nowhere", bad.err)

    def test_a_runtime_folder_that_others_may_write_to_is_refused(self):
        folder = self.path("open")
        os.mkdir(folder)
        os.chmod(folder, 0o777)
        node = harness.program([os.path.join(harness.BIN, "troupe-node"), "--cluster", self.cluster], dict(self.environment, XDG_RUNTIME_DIR=folder))
        self.programs.append(node)
        self.assertEqual(node.wait(), 5, node.tail())
        self.assertIn("others may write to the folder", node.err)
        self.assertEqual(stat.S_IMODE(os.stat(folder).st_mode), 0o777)


class machine_test(address_test):
    """Each machine is a network namespace with one address on a common switch."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0 or shutil.which("ip") is None:
            self.skipTest("network namespaces need root and the program ip (iproute2)")
        self.prefix = f"tr{os.getpid()}x{next(numbers)}"
        try:
            self.ip("netns", "add", f"{self.prefix}s")
        except subprocess.CalledProcessError as e:
            self.skipTest(f"this machine makes no network namespaces: {e.stderr.strip()}")
        self.addCleanup(self.ip, "netns", "del", f"{self.prefix}s")
        self.in_switch("link", "add", "br0", "type", "bridge")
        self.in_switch("link", "set", "br0", "up")

    def ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=harness.HANG)

    def in_switch(self, *arguments):
        self.ip("-n", f"{self.prefix}s", *arguments)

    def machine(self, number):
        """What stands before a program that runs there; its address is 10.98.7.NUMBER."""
        name = f"{self.prefix}m{number}"
        self.ip("netns", "add", name)
        self.addCleanup(self.ip, "netns", "del", name)
        self.ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"v{number}", "netns", f"{self.prefix}s")
        self.in_switch("link", "set", f"v{number}", "master", "br0", "up")
        self.ip("-n", name, "addr", "add", f"10.98.7.{number}/24", "dev", "eth0")
        self.ip("-n", name, "link", "set", "eth0", "up")
        self.ip("-n", name, "link", "set", "lo", "up")
        return ("ip", "netns", "exec", name)


class machines(machine_test):
    def test_wildcards_on_three_machines_and_a_program_on_a_fourth(self):
        at = [self.machine(i) for i in range(1, 5)]
        self.node_apart("--listen", "0.0.0.0:7000", where=at[0])
        for where in at[1:3]:
            self.node_apart("--listen", "0.0.0.0:7000", "--join", "10.98.7.1:7000", where=where)
        listed = self.is_whole("10.98.7.1:7000", 3, where=at[3])
        self.assertEqual({n["address"] for n in listed}, {f"10.98.7.{i}:7000" for i in (1, 2, 3)})
        self.trains_on("10.98.7.2:7000", 3, where=at[3])

    def test_members_without_a_way_to_each_other_say_so_and_a_job_names_them(self):
        at = [self.machine(i) for i in range(1, 5)]
        self.node_apart("--listen", "10.98.7.1:7000", where=at[0])
        for here, there in ((2, 3), (3, 2)):
            self.node_apart("--listen", "0.0.0.0:7000", "--join", "10.98.7.1:7000", where=(*self.without_route(at[here - 1], there), *at[here - 1]))
        events = lambda: self.ask("10.98.7.1:7000", "events", codes=(0, TIMED_OUT), where=at[0]).out
        for there in (2, 3):
            self.until(f"an event says that nobody gets to 10.98.7.{there}", lambda: f"no connection to 10.98.7.{there}:7000" in events())
        late = self.ask("10.98.7.1:7000", "wait", "nodes=3", "--timeout", "1s", codes=(TIMED_OUT,), where=at[0])
        self.assertIn("of 3 nodes are alive", late.err)
        # A program whose machine has no way to one of them.
        program = self.start_apart("train_classifier", "--join", "10.98.7.1:7000", "--workers", 3, "--timeout", "4s",
                                   where=(*self.without_route(at[3], 2), *at[3]))
        self.assertNotEqual(program.wait(), 0, program.tail())
        self.assertRegex(program.err, r"left out: .* at 10\.98\.7\.2:7000, which this program does not reach")

    def without_route(self, machine, other):
        """Nothing gets from there to the other machine."""
        self.ip("-n", machine[-1], "route", "add", "unreachable", f"10.98.7.{other}/32")
        return ()

    def test_an_address_that_its_own_machine_alone_reaches_gives_way_to_one_that_others_do(self):
        at = [self.machine(i) for i in (1, 2)]
        self.node_apart("--listen", "0.0.0.0:7000", where=at[0])
        self.node_apart("--listen", "0.0.0.0:7001", "--join", "127.0.0.1:7000", where=at[0])
        self.is_whole("127.0.0.1:7000", 2, where=at[0])
        self.node_apart("--listen", "0.0.0.0:7000", "--join", "10.98.7.1:7000", where=at[1])
        listed = self.is_whole("10.98.7.1:7000", 3, where=at[1])
        self.assertEqual({n["address"] for n in listed}, {"10.98.7.1:7000", "10.98.7.1:7001", "10.98.7.2:7000"})
        self.trains_on("10.98.7.1:7000", 3, where=at[1])


if __name__ == "__main__":
    harness.main()
