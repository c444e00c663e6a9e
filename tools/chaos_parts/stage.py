"""A cluster of real processes for one run: nodes, a training whose committed steps are seen as they come, and what it all says.

  with stage(plan) as s:
      s.start_nodes(3)
      training = s.begin_training(...)
      s.kill(node)

Committed steps are the lines that train_classifier writes to --losses: a program gets the loss of a step once, in order, and of a
job that is resumed only when every shard has applied it (JC-4). The file is a pseudo-terminal, so that lines come one by one.

STG-1  Every process that a stage starts is ended by its pid when the stage ends, however it ends; its folder goes with it, unless it
       is to be kept.
"""

import os
import pty
import re
import shutil
import signal
import sys
import threading
import time
import tty

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/multiprocess"))
import harness  # noqa: E402

HANG = 60.0  # seconds: no step of a run takes as long


class broken(Exception):
    """An invariant does not hold."""


class commit_log:
    """The lines `step,loss` of a training, with the times at which they came."""

    def __init__(self):
        self.master, self.slave = pty.openpty()
        tty.setraw(self.slave)
        self.path = os.ttyname(self.slave)
        self.times, self.steps, self.losses = [], [], []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        rest = b""
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return
            now = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.endswith(b"end"):
                    return
                step, _, loss = line.decode().partition(",")
                self.losses.append(loss)
                self.steps.append(int(step))
                self.times.append(now)  # last: who sees n times sees n steps

    def count(self):
        return len(self.times)

    def close(self):
        os.write(self.slave, b"end\n")
        self.reader.join(timeout=5)
        os.close(self.slave)
        os.close(self.master)


class stage(harness.cluster_test):
    def __init__(self, options):
        super().__init__("runTest")
        self.options = options
        self.due = []       # (when, node arguments): nodes to be started
        self.killed = set()  # pids that we killed
        self.asked_to_leave = set()
        self.logs = []
        self.training = None
        self.commits = None

    def runTest(self):
        pass

    def __enter__(self):
        # A signal while the folder is made would leave it behind: it is taken afterwards.
        came = []
        handlers = {s: signal.signal(s, lambda number, frame: came.append(number)) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            self.setUp()
        finally:
            for s, handler in handlers.items():
                signal.signal(s, handler)
        if came:
            self.folder.cleanup()
            raise KeyboardInterrupt
        return self

    def __exit__(self, kind, error, trace):
        handlers = {s: signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            if kind is not None and issubclass(kind, (broken, AssertionError)):
                print(self.evidence(), file=sys.stderr)
            for p in self.programs:
                p.end()
            for log in self.logs:
                log.close()
            if self.options.keep:
                self.keep()
            self.folder.cleanup()
        finally:
            for s, handler in handlers.items():
                signal.signal(s, handler)

    def keep(self):
        kept = self.folder.name + "-kept"
        shutil.copytree(self.folder.name, kept, ignore=shutil.ignore_patterns("*.sock", "images"))
        for p in self.programs:
            name = os.path.basename(p.arguments[0])
            if name == "troupe":
                continue
            for which in ("out", "err"):
                with open(os.path.join(kept, f"{name}-{p.pid}.{which}"), "w") as f:
                    f.writelines(f"{at:.6f} {line}\n" for at, line in zip(p.times[which], p.lines[which]))
        print(f"chaos: kept {kept}", file=sys.stderr)

    def evidence(self):
        parts = [f"--- {p} {' '.join(p.arguments[1:])}\n{p.tail()}" for p in self.programs if os.path.basename(p.arguments[0]) != "troupe"]
        for question in (["list", "nodes"], ["list", "jobs"], ["why"], ["events"]):
            p = self.start("troupe", "--cluster", self.cluster, *question)
            try:
                p.wait(20)
                parts.append(f"--- troupe {' '.join(question)}\n{p.out}{p.err}")
            except AssertionError:
                parts.append(f"--- troupe {' '.join(question)} did not end")
        return "\n".join(parts)

    def fail(self, message=None):
        raise broken(message)

    # --- nodes --------------------------------------------------------------------------------------------------------

    def living(self):
        """Nodes that run and say that they listen."""
        self.tick()
        return [n for n in self.nodes if n.is_running() and n.lines["out"]]

    def address_of(self, node):
        return node.lines["out"][0].split()[1]

    def kill(self, node):
        """When it died."""
        self.killed.add(node.pid)
        at = time.monotonic()
        os.kill(node.pid, signal.SIGKILL)
        node.process.wait()
        return at

    def start_later(self, seconds):
        self.due.append(time.monotonic() + seconds)

    def tick(self):
        now = time.monotonic()
        for when in [w for w in self.due if w <= now]:
            self.due.remove(when)
            self.start_node()

    def pause(self, seconds):
        end = time.monotonic() + seconds
        while True:
            self.tick()
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.005))

    def wait_for(self, what, condition, seconds=HANG, pause=0.005, progress=lambda: None):
        """`progress`: whenever it changes, the time begins anew: what is slow does not hang."""
        end, last = time.monotonic() + seconds, progress()
        while True:
            self.tick()
            value = condition()
            if value:
                return value
            if (now := progress()) != last:
                end, last = time.monotonic() + seconds, now
            if time.monotonic() > end:
                raise broken(f"hang: {what}: not within {seconds:.0f} s")
            time.sleep(pause)

    def wait_living(self, count):
        self.wait_for(f"{count} nodes listen", lambda: len(self.living()) >= count)

    def check_survivors(self):
        """Nobody has ended or changed whom we did not kill, stop for long or ask to leave."""
        for n in self.nodes:
            if n.pid not in self.killed and n.pid not in self.asked_to_leave and not n.is_running():
                raise broken(f"{n} ended by itself with {n.process.returncode}")
        answer = self.look("nodes", seconds=10)
        for n in answer:
            if n["kind"] == "node" and n["state"] == "alive" and n["incarnation"] != 1:
                raise broken(f"node {n['name']} (pid {n['pid']}) was never held dead for long and has joined {n['incarnation']} times")

    # --- looking ------------------------------------------------------------------------------------------------------

    def look(self, kind, through=None, timeout="2s", seconds=10):
        """What `troupe list KIND` (or status) says through one node; None where it says nothing."""
        words = [kind] if kind in ("status", "events") else ["list", kind]
        through = through or self.living()[0]
        p = self.start("troupe", "--cluster", self.cluster, "--join", self.address_of(through), "--timeout", timeout, "--json", *words)
        p.wait(seconds)
        self.programs.remove(p)
        return harness.json.loads(p.out) if p.out else None

    # --- training -----------------------------------------------------------------------------------------------------

    def begin_training(self, *arguments, program="train_classifier"):
        log = commit_log()
        self.logs.append(log)
        training = self.start(program, "--cluster", self.cluster, *self.own_lease(arguments), *arguments, "--losses", log.path)
        training.commits = log
        self.training, self.commits = training, log
        return training

    def wait_commits(self, count, seconds=HANG):
        """True; or False when the training ended before."""
        return self.wait_for(f"{count} committed steps", lambda: self.commits.count() >= count or not self.training.is_running(), seconds,
                             progress=self.commits.count) \
            and self.commits.count() >= count

    def said(self):
        """What the training said on stderr beside progress: (time, line)."""
        t = self.training
        return [(at, line) for at, line in zip(list(t.times["err"]), list(t.lines["err"])) if not re.match(r" *\d+%  epoch ", line)]
