#!/usr/bin/env python3
"""Connections that are protected: the same bits, what is refused and how it is told, bytes that are changed on the way: protection.py BIN_FOLDER"""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading

import addresses
import harness

DENIED, TIMED_OUT = 5, 4

# Writes what comes by on any card of a machine to a file, until its input ends.
SNIFFER = """
import select, socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
print("listens", flush=True)
with open(sys.argv[1], "wb") as f:
    while True:
        ready, _, _ = select.select([s, sys.stdin], [], [], 0.2)
        if s in ready:
            f.write(s.recv(1 << 17))
        elif sys.stdin in ready:
            break
"""


class relay:
    """Who is on the way: forwards connections of one port to another address; of some of them it changes, puts in, leaves out or repeats bytes,
    once each, or ends them. `harms`: what it does to the next ones, each at that byte of its direction to the target."""

    def __init__(self, harms=()):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.target, self.harms, self.done = None, list(harms), []
        self.lock = threading.Lock()
        self.sockets = [self.listener]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target, timeout=10)
                far.settimeout(None)
            except OSError:
                if self.listener.fileno() < 0:
                    return
                continue
            self.sockets += [near, far]
            threading.Thread(target=self.carry, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self.carry, args=(far, near, False), daemon=True).start()

    def carry(self, near, far, may_harm):
        passed = 0
        try:
            while data := near.recv(1 << 16):
                passed += len(data)
                if may_harm and (harm := self.due(passed)):
                    may_harm = False
                    data = harm(data)
                far.sendall(data)
        except OSError:
            pass
        for s in (near, far):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def due(self, passed):
        with self.lock:
            if self.harms and passed >= self.harms[0][1]:
                kind, _ = self.harms.pop(0)
                self.done.append(kind)
                return getattr(self, kind)
        return None

    @staticmethod
    def flip(data):
        at = len(data) // 2
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1:]

    @staticmethod
    def forge(data):
        return b"\x17\x03\x03\x00\x40" + os.urandom(64) + data

    @staticmethod
    def drop(data):
        return data[:len(data) // 2]

    @staticmethod
    def repeat(data):
        return data + data

    @staticmethod
    def cut(data):
        raise OSError("the relay ends this connection")

    def close(self):
        for s in self.sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()


class protected_test(harness.cluster_test):
    def bits_of(self, *flags, alone=False, nodes=()):
        losses = self.path("losses.csv")
        arguments = ("--workers", "2", "--shards", "2", "--epochs", "1", "--data", self.make_data(), "--losses", losses, "--json")
        p = self.train_alone(*arguments) if alone else self.train(*flags, *arguments)
        with open(losses) as f:
            return self.json_of(p)["weights_hash"], f.read()

    def start_three(self, *flags):
        for node in [self.start_node(*flags) for _ in range(3)]:
            self.address(node)
        self.tool(*flags, "wait", "nodes=3", "--timeout", f"{harness.HANG:.0f}s", seconds=2 * harness.HANG)

    # --- certificates, by the command openssl ----------------------------------------------------------------------------

    def openssl(self, *arguments):
        if shutil.which("openssl") is None:
            self.skipTest("certificates need the program openssl")
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=harness.HANG)

    def make_ca(self, name):
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}", "-days", "2",
                     "-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.pem"))
        return name

    def certificate(self, name, ca, trusts=None):
        """The flags of a process with a certificate of that CA, which trusts it or another one."""
        self.openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                     "-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.csr"))
        self.openssl("x509", "-req", "-in", self.path(f"{name}.csr"), "-CA", self.path(f"{ca}.pem"), "-CAkey", self.path(f"{ca}.key"),
                     "-set_serial", str(next(harness.numbers)), "-days", "1", "-out", self.path(f"{name}.pem"))
        os.chmod(self.path(f"{name}.key"), 0o600)
        return ("--tls-certificate", self.path(f"{name}.pem"), "--tls-key", self.path(f"{name}.key"), "--tls-ca", self.path(f"{trusts or ca}.pem"))


class protection(protected_test):
    def test_three_nodes_with_TLS_give_the_same_bits_as_none(self):
        alone = self.bits_of(alone=True)
        self.start_three("--tls")
        self.assertEqual(self.bits_of("--tls"), alone)

    def test_three_nodes_with_certificates_give_the_same_bits_and_are_seen_by_the_tool(self):
        alone = self.bits_of(alone=True)
        flags = self.certificate("node", self.make_ca("ca"))
        self.start_three(*flags)
        self.assertEqual(self.bits_of(*flags), alone)
        self.assertIn("joined", self.tool(*flags, "events"))
        self.assertIn('"traceEvents"', self.tool(*flags, "timeline", "--seconds", "0.2"))

    def test_one_with_TLS_and_one_without_end_with_one_error_at_both(self):
        for flags, others, word in (((), ("--tls",), "give --tls to both"), (("--tls",), (), "give --tls (or")):
            with self.subTest(flags=flags):
                node = self.start_node(*others)
                seed = self.address(node)
                if flags:  # which looks for another node as long as it may
                    refused = self.start("train_classifier", "--cluster", self.cluster, "--join", seed, *flags, "--timeout", "10s")
                    self.assertEqual(refused.wait(), DENIED, refused.tail())
                    self.assertIn(word, refused.err)
                joiner = self.start("troupe-node", "--cluster", self.cluster, "--join", seed, *flags)
                self.assertEqual(joiner.wait(), DENIED, joiner.tail())
                self.assertIn(word, joiner.err)
                asker = self.run_program("troupe", "--cluster", self.cluster, "--join", seed, *flags, "list", "nodes")
                self.assertEqual(asker.code, DENIED, asker.tail())
                self.assertIn(word, asker.err)
                self.until("the node tells of it", lambda: word in self.tool(*others, "--join", seed, "events"))
                node.end()

    def test_another_token_is_told_as_without_TLS(self):
        def token(name, text):
            with open(os.open(self.path(name), os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
                f.write(text + "\n")
            return ("--tls", "--token-file", self.path(name))
        node = self.start_node(*token("one", "0123456789abcdef" * 2))
        seed = self.address(node)
        joiner = self.start("troupe-node", "--cluster", self.cluster, "--join", seed, *token("two", "fedcba9876543210" * 2))
        self.assertEqual(joiner.wait(), DENIED, joiner.tail())
        self.assertIn(f"wrong token for cluster '{self.cluster}': use the same --token-file on all of its nodes", joiner.err)
        self.until("the node tells of it", lambda: "(wrong token" in self.tool(*token("one", "0123456789abcdef" * 2), "--join", seed, "events"))

    def test_certificates_that_do_not_fit_are_told_at_both_ends(self):
        ca, other = self.make_ca("ca"), self.make_ca("other")
        flags = self.certificate("node", ca)
        node = self.start_node(*flags)
        seed = self.address(node)
        # Who would be refused by all is so by itself, before it begins.
        joiner = self.start("troupe-node", "--cluster", self.cluster, "--join", seed, *self.certificate("stranger", other, trusts=ca))
        self.assertEqual(joiner.wait(), DENIED, joiner.tail())
        self.assertIn("has not signed it", joiner.err)
        # All of another CA: each end does not trust the other one.
        joiner = self.start("troupe-node", "--cluster", self.cluster, "--join", seed, *self.certificate("foreign", other))
        self.assertEqual(joiner.wait(), DENIED, joiner.tail())
        self.assertRegex(joiner.err, r"the peer's certificate \(/CN=node\) is not accepted: the CA in .*other.pem has not signed it")
        self.until("the node tells of it", lambda: "does not trust this process's certificate" in self.tool(*flags, "--join", seed, "events"))
        # A token there and certificates here.
        joiner = self.start("troupe-node", "--cluster", self.cluster, "--join", seed, "--tls")
        self.assertEqual(joiner.wait(), DENIED, joiner.tail())
        self.assertIn("give --tls-certificate, --tls-key and --tls-ca to both", joiner.err)
        # A key that is another's, and a file that is not there.
        wrong = list(flags)
        wrong[3] = self.path("foreign.key")
        joiner = self.start("troupe-node", "--cluster", self.cluster, *wrong)
        self.assertEqual(joiner.wait(), 2, joiner.tail())
        self.assertIn("is not the key of the certificate", joiner.err)
        wrong[3] = self.path("none")
        joiner = self.start("troupe-node", "--cluster", self.cluster, *wrong)
        self.assertEqual(joiner.wait(), 2, joiner.tail())
        self.assertIn(f"--tls-key {self.path('none')}: No such file", joiner.err)

    def test_insecure_is_said_on_stderr_and_in_events(self):
        node = self.start_node("--insecure")
        seed = self.address(node)
        self.assertIsNotNone(node.line("warning .* --insecure: connections", which="err"))
        self.assertEqual(node.err.count("--insecure"), 1)
        self.assertIn("--insecure: connections beyond loopback are neither encrypted", self.tool("--join", seed, "events"))
        both = self.start("troupe-node", "--cluster", self.cluster, "--insecure", "--tls")
        self.assertEqual(both.wait(), 2, both.tail())
        self.assertIn("--insecure and --tls exclude each other", both.err)


class on_the_way(addresses.address_test):
    """All that goes to a node goes by a relay; each process has a runtime folder of its own, so that nobody finds a way around."""

    def test_bytes_that_are_changed_on_the_way_are_never_taken(self):
        arguments = ("--workers", 2, "--shards", 2, "--epochs", 1, "--json", "--data", self.make_data(600, 100))
        alone = self.json_of(self.train_alone(*arguments))["weights_hash"]
        kinds = ("flip", "drop", "forge", "repeat", "cut")
        relays = [relay([(kind, at) for kind in kinds]) for at in (200_000, 60_000)]
        for r in relays:
            self.addCleanup(r.close)
        seed = f"127.0.0.1:{relays[0].port}"
        for r in relays:
            node = self.node_apart("--tls", "--announce", f"127.0.0.1:{r.port}", *(("--join", seed) if r is not relays[0] else ()))
            r.target = ("127.0.0.1", node.port)
        self.ask(seed, "--tls", "wait", "nodes=2", "--timeout", f"{harness.HANG:.0f}s")
        p = self.start_apart("train_classifier", "--join", seed, "--tls", "--lease", self.lease, *arguments)
        self.assertEqual(p.wait(2 * harness.HANG), 0, p.tail())
        self.assertEqual(self.json_of(p)["weights_hash"], alone)
        harmed = [kind for r in relays for kind in r.done]
        self.assertGreater(len(harmed), 2, harmed)
        for r in relays:
            r.harms.clear()
        self.until("an event tells of it", lambda: re.search(r"a connection to \S+ is given up and made again: .*(changed|other bytes)",
                                                             self.ask(seed, "--tls", "events", codes=(0, TIMED_OUT)).out))


class machines(addresses.machine_test):
    """Beyond loopback."""

    def sniff(self, where):
        path = self.path(f"seen{next(harness.numbers)}")
        s = subprocess.Popen([*where, sys.executable, "-c", SNIFFER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.assertEqual(s.stdout.readline().strip(), "listens")

        def seen():
            s.stdin.close()
            s.wait(timeout=harness.HANG)
            s.stdout.close()
            with open(path, "rb") as f:
                return f.read()
        return seen

    def train_over(self, at, *flags):
        for i, where in enumerate(at[:2]):
            self.node_apart("--listen", f"10.98.7.{i + 1}:7000", *flags, *(("--join", "10.98.7.1:7000") if i else ()), where=where)
        met = self.ask("10.98.7.1:7000", *flags, "wait", "nodes=2", "--timeout", f"{harness.HANG:.0f}s", where=at[2])
        self.assertIsNotNone(met)
        p = self.start_apart("train_classifier", "--join", "10.98.7.1:7000", *flags, "--workers", 2, "--epochs", 1, "--json",
                             "--data", self.make_data(300, 100), where=at[2])
        self.assertEqual(p.wait(), 0, p.tail())
        return self.json_of(p)["weights_hash"]

    def test_between_machines_it_is_on_by_itself_and_insecure_turns_it_off(self):
        at = [self.machine(i) for i in range(1, 7)]
        hashes = []
        for flags, machines, is_readable in (((), at[:3], False), (("--insecure",), at[3:], True)):
            with self.subTest(flags=flags):
                if flags:  # others, at the same addresses
                    for where in at[:3]:
                        self.ip("-n", where[-1], "link", "set", "eth0", "down")
                    for i, where in enumerate(machines):
                        self.ip("-n", where[-1], "addr", "flush", "dev", "eth0")
                        self.ip("-n", where[-1], "addr", "add", f"10.98.7.{i + 1}/24", "dev", "eth0")
                seen = self.sniff(machines[0])
                hashes.append(self.train_over(machines, *flags))
                wire = seen()
                self.assertGreater(len(wire), 100_000)
                for words in (b"/job:worker", b"softmax_cross_entropy"):  # long enough that no chance has them
                    self.assertEqual(words in wire, is_readable, words)
                self.assertNotIn(b"0123456789abcdef0123456789abcdef", wire)  # the token
        self.assertEqual(hashes[0], hashes[1])

    def test_one_insecure_process_is_refused_by_the_others(self):
        at = [self.machine(i) for i in range(1, 3)]
        self.node_apart("--listen", "10.98.7.1:7000", where=at[0])
        joiner = self.start_apart("troupe-node", "--listen", "10.98.7.2:7000", "--insecure", "--join", "10.98.7.1:7000", where=at[1])
        self.assertEqual(joiner.wait(), DENIED, joiner.tail())
        self.assertIn("leave out its --insecure", joiner.err)
        self.node_apart("--listen", "10.98.7.2:7001", "--insecure", where=at[1])
        joiner = self.start_apart("troupe-node", "--listen", "10.98.7.1:7001", "--join", "10.98.7.2:7001", where=at[0])
        self.assertEqual(joiner.wait(), DENIED, joiner.tail())
        self.assertIn("the other one has --insecure: leave that out", joiner.err)


if __name__ == "__main__":
    harness.main()
