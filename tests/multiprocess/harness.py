"""Real processes for tests: a cluster of its own for each test, programs started, watched and always ended.

  class equality(harness.cluster_test):
      def test_something(self):
          self.start_nodes(3)
          done = self.train("--workers", "2", "--epochs", "1", "--json")

  if __name__ == "__main__":
      harness.main()          # NAME.py BIN_FOLDER [unittest arguments]

HA-1  Every test has a cluster name and a runtime folder of its own: it meets no other test and no cluster of the user.
HA-2  Every process that a test starts is ended by its pid after the test, whether it passed or not.
HA-3  Time limits guard against hangs only; they are generous, and nothing else about time decides whether a test passes.
"""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

BIN = ""
numbers = itertools.count(1)
LOG_LINE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z  (trace|debug|info|warning|error) +\S"  # of a node: node_log.hpp
HANG = 60.0  # seconds: no single step of a test takes as long, also on a busy machine


class program:
    """A started program; its output is collected line by line while it runs."""

    def __init__(self, arguments, environment):
        self.arguments = arguments
        self.lines = {"out": [], "err": []}
        self.times = {"out": [], "err": []}
        self.changed = threading.Condition()
        self.process = subprocess.Popen(arguments, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
        self.pid = self.process.pid
        self.readers = [threading.Thread(target=self._read, args=(self.process.stdout, "out"), daemon=True),
                        threading.Thread(target=self._read, args=(self.process.stderr, "err"), daemon=True)]
        for reader in self.readers:
            reader.start()

    def _read(self, stream, which):
        for line in stream:
            with self.changed:
                self.lines[which].append(line.rstrip("\n"))
                self.times[which].append(time.monotonic())
                self.changed.notify_all()
        stream.close()
        with self.changed:
            self.changed.notify_all()

    @property
    def out(self):
        return "\n".join(self.lines["out"])

    @property
    def err(self):
        return "\n".join(self.lines["err"])

    def line(self, pattern, which="out", seconds=HANG):
        """The first line that matches, and when it was read; None if the output ended without one."""
        end = time.monotonic() + seconds
        with self.changed:
            while True:
                for text, at in zip(self.lines[which], self.times[which]):
                    found = re.search(pattern, text)
                    if found:
                        return found, at
                reader = self.readers[0 if which == "out" else 1]
                if not reader.is_alive():
                    return None
                if time.monotonic() > end:
                    break
                self.changed.wait(0.2)
        waited = f"{self} did not say '{pattern}' within {seconds:.0f} s"
        raise AssertionError(f"{waited}\n{self.tail()}")

    def is_running(self):
        return self.process.poll() is None

    def send(self, number):
        if self.is_running():
            os.kill(self.pid, number)

    def wait(self, seconds=HANG):
        """The exit code (negative: the signal), with all output read."""
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} did not end within {seconds:.0f} s\n{self.tail()}") from None
        for reader in self.readers:
            reader.join(timeout=10)
        return code

    def end(self):
        if self.is_running():
            os.kill(self.pid, signal.SIGCONT)
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def tail(self):
        return f"stdout: {self.out[-2000:]}\nstderr: {self.err[-4000:]}"

    def __str__(self):
        code = self.process.poll()
        return f"{os.path.basename(self.arguments[0])} (pid {self.pid}" + (")" if code is None else f", ended with {code})")


ENDLESS = 100_000  # epochs


class cluster_test(unittest.TestCase):
    # Of every node and training that a test starts. On a machine that is busy with other things a process may stand still for a second, and with a lease
    # of a second, which they have by themselves, it is then rightly held dead. Who is killed is noticed at once, by the connection that ends; a test that
    # stops somebody, which is noticed by the lease, has None: theirs.
    lease = "30s"

    def own_lease(self, arguments):
        return ("--lease", self.lease) if self.lease and "--lease" not in arguments else ()

    def setUp(self):
        self.programs = []
        self.nodes = []
        self.folder = tempfile.TemporaryDirectory(prefix="troupe-test-")
        self.cluster = f"test-{os.getpid()}-{next(numbers)}"  # short: it is part of a socket's path
        self.environment = dict(os.environ, XDG_RUNTIME_DIR=self.folder.name, TMPDIR=self.folder.name, XDG_CONFIG_HOME=self.folder.name)
        # What a person has set is not meant for tests.
        for name in ("CONTEXT", "CONTEXTS", "CLUSTER", "JOIN", "TOKEN_FILE"):
            self.environment.pop("TROUPE_" + name, None)

    def tearDown(self):
        if self._has_failed():
            self._explain()
        stuck = []
        for p in self.programs:
            try:
                p.end()
            except AssertionError as e:  # also killed it does not end: the others do
                stuck.append(str(e))
        self.folder.cleanup()
        if stuck:
            self.fail("\n".join(stuck))

    def _has_failed(self):
        if hasattr(self._outcome, "errors"):  # before Python 3.11
            return any(error for _, error in self._outcome.errors)
        result = self._outcome.result
        return any(test is self for test, _ in result.failures + result.errors)

    def _explain(self):
        """What a person wants to see of a failed test: what all programs said, and what the cluster says now."""
        for p in self.programs:
            if os.path.basename(p.arguments[0]) != "troupe":
                print(f"--- {p} {' '.join(p.arguments[1:])}\n{p.tail()}", file=sys.stderr)
        for question in (["list", "nodes"], ["list", "jobs"], ["why"], ["events"]):
            if self.nodes:
                p = self.start("troupe", "--cluster", self.cluster, *question)
                try:
                    p.wait(20)
                    print(f"--- troupe {' '.join(question)}\n{p.out}{p.err}", file=sys.stderr)
                except AssertionError:
                    print(f"--- troupe {' '.join(question)} did not end", file=sys.stderr)

    # --- programs -----------------------------------------------------------------------------------------------------

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def inode(self, path):
        """Another one each time that a file is replaced; None: there is none."""
        try:
            return os.stat(path).st_ino
        except FileNotFoundError:
            return None

    def start(self, name, *arguments):
        p = program([os.path.join(BIN, name), *map(str, arguments)], self.environment)
        self.programs.append(p)
        return p

    def run_program(self, name, *arguments, seconds=HANG):
        p = self.start(name, *arguments)
        p.code = p.wait(seconds)
        return p

    def start_node(self, *arguments):
        node = self.start("troupe-node", "--cluster", self.cluster, *self.own_lease(arguments), *arguments)
        self.nodes.append(node)
        return node

    def address(self, node):
        found = node.line(r"^listening (\S+)$")
        self.assertIsNotNone(found, f"{node} did not say that it listens\n{node.tail()}")
        return found[0].group(1)

    def start_nodes(self, count, *arguments):
        """`count` nodes started at once, that have found each other."""
        started = [self.start_node(*arguments) for _ in range(count)]
        for node in started:
            self.address(node)
        self.wait_nodes(len([n for n in self.nodes if n.is_running()]))
        return started

    def complaints(self, node):
        """What a node said on stderr, but for its log."""
        return [line for line in node.lines["err"] if not re.match(LOG_LINE, line)]

    def tool(self, *arguments, codes=(0,), seconds=HANG):
        done = self.run_program("troupe", "--cluster", self.cluster, *arguments, seconds=seconds)
        self.assertIn(done.code, codes, f"troupe {' '.join(arguments)}\n{done.tail()}")
        return done.out

    def wait_nodes(self, count):
        self.tool("wait", f"nodes={count}", "--timeout", f"{HANG:.0f}s", seconds=2 * HANG)

    def list(self, kind, *arguments):
        """What `troupe list` says, parsed; also where some node does not answer. Where none did in time, which happens on a busy machine, it is
        asked again."""
        end = time.monotonic() + HANG
        while not (said := self.tool("list", kind, "--json", *arguments, codes=(0, 4))):
            self.assertLess(time.monotonic(), end, f"no node answers troupe list {kind}")
        return json.loads(said)

    def name_of(self, node):
        """Of its present life: a process that was held dead joins anew under another name."""
        return next(n["name"] for n in self.list("nodes") if n["pid"] == node.pid and n["state"] == "alive")

    def node_of(self, job, actor_prefix):
        """The node that runs an actor whose name begins so."""
        def running():
            return {a["node"] for a in self.list("actors")
                    if a["job"] == job and a["kind"] in ("op", "shard") and a["name"].startswith(actor_prefix)}
        names = self.until(f"an actor {actor_prefix}* of job {job} is listed", running)
        self.assertEqual(len(names), 1, f"{actor_prefix}* run on {names}")
        pid = next(n["pid"] for n in self.list("nodes") if n["name"] in names)
        return next(n for n in self.nodes if n.pid == pid)

    def start_training(self, *arguments):
        return self.start("train_classifier", "--cluster", self.cluster, *self.own_lease(arguments), *arguments)

    def train(self, *arguments, code=0, seconds=HANG):
        p = self.start_training(*arguments)
        p.code = p.wait(seconds)
        self.assertEqual(p.code, code, f"train_classifier {' '.join(map(str, arguments))}\n{p.tail()}")
        return p

    def train_alone(self, *arguments, code=0):
        p = self.run_program("train_classifier", *arguments)
        self.assertEqual(p.code, code, f"train_classifier {' '.join(map(str, arguments))}\n{p.tail()}")
        return p

    def json_of(self, p):
        return json.loads(p.lines["out"][-1])

    # --- waiting ------------------------------------------------------------------------------------------------------

    def until(self, what, condition, seconds=HANG, pause=0.05, progress=lambda: None):
        """Asks until `condition()` is true (its value is returned). `progress`: whenever it changes, the time begins anew: what is slow
        does not hang."""
        end, last = time.monotonic() + seconds, progress()
        while True:
            value = condition()
            if value:
                return value
            if (now := progress()) != last:
                end, last = time.monotonic() + seconds, now
            if time.monotonic() > end:
                self.fail(f"waited until {what}: not within {seconds:.0f} s")
            time.sleep(pause)

    def job(self, name):
        """The newest job of that name, or None."""
        jobs = [j for j in self.list("jobs") if j["name"] == name]
        return min(jobs, key=lambda j: j["started_seconds"]) if jobs else None

    def until_step(self, training, name, step):
        """Until the job of that running program has done `step` steps."""
        seen = 0

        def reached():
            nonlocal seen
            self.assertTrue(training.is_running(), f"the training ended before step {step}\n{training.tail()}")
            job = self.job(name)
            seen = job["step"] if job else seen
            return seen >= step
        self.until(f"step {step} of job {name}", reached, progress=lambda: seen)

    def goes_on_for(self, training, name, steps=20):
        """After whatever was done to it."""
        self.until_step(training, name, self.job(name)["step"] + steps)

    def end_in_good_order(self, training, name):
        """Of a training with far more steps than a test needs, so that it is not over before something is done to it, and that can recover:
        how many steps it has made (async: gradients of all workers)."""
        said = self.tool("job", "finish", name)
        found = re.search(r"is done, at step (\d+)", said)
        self.assertIsNotNone(found, said)
        self.assertEqual(training.wait(), 0, training.tail())
        return int(found.group(1))

    def running_parts(self, name):
        """Actors of that job on nodes that have not ended."""
        return [a for a in self.list("actors") if a["job"] == name and a["state"] != "ended"]

    # --- data ---------------------------------------------------------------------------------------------------------

    def make_data(self, samples=2000, test_samples=200):
        """A folder with a small image set in IDX files: each class is a bright bar at a place of its own, plus noise."""
        folder = self.path("images")
        os.makedirs(folder, exist_ok=True)
        for prefix, count, seed in (("train", samples, 1), ("t10k", test_samples, 2)):
            images, labels = make_images(count, seed)
            with open(os.path.join(folder, f"{prefix}-images-idx3-ubyte"), "wb") as f:
                f.write(b"\x00\x00\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (count, 28, 28)) + images)
            with open(os.path.join(folder, f"{prefix}-labels-idx1-ubyte"), "wb") as f:
                f.write(b"\x00\x00\x08\x01" + count.to_bytes(4, "big") + labels)
        return folder


def make_images(count, seed):
    """Pixels and labels; the same for the same arguments on every machine."""
    state, noise = seed, bytearray()
    for _ in range(1 << 16):
        state = (state * 6364136223846793005 + 1442695040888963407) & (2 ** 64 - 1)
        noise.append(state >> 58)  # 0..63
    images, labels = bytearray(), bytearray()
    for i in range(count):
        label = (i * 7 + seed) % 10
        start = (i * 4099) % (len(noise) - 784)
        image = bytearray(noise[start:start + 784])
        for row in range(4, 24):
            for column in range(2 + label * 2, 5 + label * 2):
                image[row * 28 + column] += 150
        images += image
        labels.append(label)
    return bytes(images), bytes(labels)


def main():
    global BIN
    BIN = sys.argv.pop(1)
    unittest.main(verbosity=2)
