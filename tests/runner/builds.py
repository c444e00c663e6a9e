"""Builds of a preset: configured, then compiled by ninja, which writes into a log that is read while it runs."""

import os
import re
import resource
import subprocess
import time

import processes

FOLDERS = {"release": "build", "debug": "build-debug", "tsan": "build-tsan"}
PROGRESS = re.compile(r"^\[(\d+)/(\d+)\]", re.M)


def give_way():
    """Behind the tests that run meanwhile. Where Linux shares cores among sessions first, it is the session's own priority that counts."""
    os.nice(19)
    try:
        with open("/proc/self/autogroup", "w") as f:
            f.write("19")
    except OSError:
        pass


class build:
    """One preset's. start() returns at once; the loop that waits for children tells ended()."""

    def __init__(self, root, preset, targets, scratch):
        self.preset, self.targets = preset, targets
        self.folder = os.path.join(root, FOLDERS[preset])
        self.root = root
        self.log = os.path.join(self.folder, "build.log")
        self.stats = os.path.join(scratch, f"ccache-{preset}")
        self.state = "waiting"  # configuring, compiling, done, failed
        self.pid = 0
        self.began = self.seconds = self.cpu = 0.0

    def start(self, nice):
        os.makedirs(self.folder, exist_ok=True)
        self.began = time.monotonic()
        self.state = "compiling"
        script = ('cmake --preset "$1" > "$2/configure.log" 2>&1 || { cat "$2/configure.log"; exit 1; }; '
                  'folder=$2; shift 2; exec ninja -C "$folder" -k 20 "$@"')
        environment = dict(os.environ, CCACHE_STATSLOG=self.stats, NINJA_STATUS="[%f/%t] ")
        with open(self.log, "wb") as log:
            p = subprocess.Popen(["sh", "-c", script, "build", self.preset, self.folder, *self.targets], cwd=self.root, stdin=subprocess.DEVNULL,
                                 stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
                                 preexec_fn=give_way if nice else None)
        self.pid = p.pid
        p.returncode = 0  # it is waited for by wait4 in the loop

    def ended(self, status, usage):
        self.seconds = time.monotonic() - self.began
        self.cpu = usage.ru_utime + usage.ru_stime
        self.state = "done" if status == 0 else "failed"

    def output(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def progress(self):
        steps = PROGRESS.findall(self.output()) if os.path.exists(self.log) else []
        return f"{steps[-1][0]}/{steps[-1][1]}" if steps else "configuring"

    def why_it_failed(self):
        """What ninja says from the first failure on, or the end of the log."""
        text = self.output()
        at = text.find("FAILED:")
        return text[at:at + 12000] if at >= 0 else text[-6000:]

    def what_runs(self):
        """The sources that are being compiled, for a build that does not end."""
        lines = []
        for p in processes.descendants(self.pid):
            command = processes.command_of(p)
            if "-c" in command and not os.path.basename(command[0]).startswith(("sh", "ccache", "cc1", "as")):
                source = command[command.index("-c") + 1] if command.index("-c") + 1 < len(command) else "?"
                lines.append(f"  {source} (pid {p}, {processes.age_of(p):.0f} s): {os.path.basename(command[0])}")
        return lines or ["  " + processes.one_line(p) for p in processes.descendants(self.pid)]

    def end(self):
        processes.kill([*processes.descendants(self.pid), self.pid])

    def cache(self):
        """(hits, misses) of the compiler cache in this run."""
        try:
            with open(self.stats) as f:
                words = [line.strip() for line in f if not line.startswith("#")]
        except OSError:
            return 0, 0
        return sum(w in ("direct_cache_hit", "preprocessed_cache_hit") for w in words), words.count("cache_miss")


def cpu_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
