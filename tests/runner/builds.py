"""Builds of a preset: configured, then compiled by ninja, which writes into a log that is read while it runs."""

import os
import re
import subprocess
import time

import processes
import suites

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
        self.state = "waiting"  # configuring, compiling, done, failed, stopped
        self.mark = f"{os.getpid()}-build-{preset}"
        self.error = ""  # why it could not be started
        self.pid = 0
        self.began = self.seconds = self.cpu = 0.0

    def start(self, nice):
        """False: it could not be started, and has failed."""
        script = ('cmake --preset "$1" > "$2/configure.log" 2>&1 || { cat "$2/configure.log"; exit 1; }; '
                  'folder=$2; shift 2; exec ninja -C "$folder" -k 20 "$@"')
        command = ["sh", "-c", script, "build", self.preset, self.folder, *self.targets]
        return self.begin("compiling", command, give_way if nice else None) is not None

    def configure(self, seconds):
        """CMake alone, which is waited for. False: it has failed, or (configuring) takes longer."""
        p = self.begin("configuring", ["cmake", "--preset", self.preset], None)
        if p is None:
            return False
        try:
            p.returncode = None
            code = p.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.seconds = time.monotonic() - self.began
        self.state = "failed" if code else "waiting"
        return code == 0

    def begin(self, state, command, preexec):
        self.began = time.monotonic()
        self.state, self.pid = state, 0  # that of the step before may be somebody else's by now
        environment = dict(os.environ, CCACHE_STATSLOG=self.stats, NINJA_STATUS="[%f/%t] ")
        environment[processes.MARK] = self.mark
        try:
            os.makedirs(self.folder, exist_ok=True)
            with open(self.log, "wb") as log:
                p = subprocess.Popen(command, cwd=self.root, stdin=subprocess.DEVNULL, stdout=log,
                                     stderr=subprocess.STDOUT, env=environment,
                                     start_new_session=True, preexec_fn=preexec)
        except (OSError, subprocess.SubprocessError) as e:
            self.state, self.error = "failed", str(e)
            return None
        self.pid = p.pid
        p.returncode = 0  # it is waited for by wait4 in the loop
        return p

    def ended(self, status, usage):
        self.seconds = time.monotonic() - self.began
        self.cpu = usage.ru_utime + usage.ru_stime
        self.state = "done" if status == 0 else "failed"

    def output(self):
        return self.error or suites.ends_of(self.log, 16 << 20)

    def progress(self):
        is_compiling = self.state == "compiling"
        steps = PROGRESS.findall(suites.end_of(self.log, 1 << 16)) if is_compiling else []
        return f"{steps[-1][0]}/{steps[-1][1]}" if steps else "configuring"

    def why_it_failed(self):
        """What ninja says from the first failure on, or the end of the log."""
        text = self.output()
        at = text.find("FAILED:")
        return text[at:at + 12000] if at >= 0 else text[-6000:]

    def what_runs(self):
        """The sources that are being compiled, for a build that does not end."""
        lines = []
        running = self.processes()
        for p in running:
            command = processes.command_of(p)
            if "-c" in command and not os.path.basename(command[0]).startswith(("sh", "ccache", "cc1", "as")):
                source = command[command.index("-c") + 1] if command.index("-c") + 1 < len(command) else "?"
                lines.append(f"  {source} (pid {p}, {processes.age_of(p):.0f} s): {os.path.basename(command[0])}")
        return lines or ["  " + processes.one_line(p) for p in running]

    def processes(self):
        return processes.of_test(self.mark, self.pid)

    def end(self):
        processes.kill([self.pid])
        processes.kill_all(self.processes)

    def cache(self):
        """(hits, misses) of the compiler cache in this run."""
        try:
            with open(self.stats) as f:
                words = [line.strip() for line in f if not line.startswith("#")]
        except OSError:
            return 0, 0
        return sum(w in ("direct_cache_hit", "preprocessed_cache_hit") for w in words), words.count("cache_miss")
