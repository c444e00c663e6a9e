"""Suites as CMake registered them with ctest, and a run of one: a command with a mark, folders and a log of its own."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import processes

SKIPPED = 77
TIMEOUT = 120.0  # of a test that does not say more
OUTPUT = 256 << 20  # what a test may write
OUTPUT_KEPT = 1 << 20  # bytes of its begin and of its end that are looked at


class suite:
    def __init__(self, preset, build_folder, described):
        properties = {p["name"]: p["value"] for p in described.get("properties", [])}
        self.preset, self.build_folder = preset, build_folder
        self.name = described["name"]
        self.command = described.get("command")
        self.labels = properties.get("LABELS", [])
        self.timeout = float(properties.get("TIMEOUT", 0)) or TIMEOUT
        self.folder = properties.get("WORKING_DIRECTORY", build_folder)
        self.is_alone = bool(properties.get("RUN_SERIAL"))
        self.is_waiting = "multiprocess" in self.labels  # most of its time, for other processes and their clocks
        self.cost = float(properties.get("COST", 0))
        self.environment = dict(e.partition("=")[::2] for e in properties.get("ENVIRONMENT", []))
        self.skip_code = int(properties.get("SKIP_RETURN_CODE", SKIPPED))

    @property
    def label(self):
        return self.name.split(".")[0]  # they are named label.folder.suite

    def __str__(self):
        return f"{self.preset} {self.name}"

    def target(self):
        """What has to be built for it; nothing for what looks at sources alone."""
        label, folder, *rest = self.name.split(".") if "." in self.name else (self.name, "")
        if self.name in OWN_TARGETS:
            return OWN_TARGETS[self.name]
        if folder == "front_door":
            return "front_door"
        if folder == "simulator":
            return "troupe-sim"
        if label == "fuzz":
            return f"{folder}_fuzz"
        if label == "multiprocess":
            return "check_multiprocess" if not rest else f"{folder}_tests"
        if folder == "gpu" or label == "gpu" or not folder:
            return "check_release"
        return None if folder == "house" else f"{folder}_tests"


OWN_TARGETS = {"unit.house.case_watch": "hanging_cases", "unit.house.bundle": "check_release",
               "multiprocess.house.terminal": "check_multiprocess", "multiprocess.house.package": "check_release",
               "multiprocess.bench.smoke": "troupe-bench"}


def read_suites(preset, build_folder):
    said = subprocess.run(["ctest", "--test-dir", build_folder, "--show-only=json-v1"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, check=True, timeout=300).stdout
    return [suite(preset, build_folder, t) for t in json.loads(said)["tests"]]


class times:
    """How long suites took here last time: the longest begin first."""

    def __init__(self, build_folder):
        self.file = os.path.join(build_folder, "test_times.json")
        try:
            with open(self.file) as f:
                self.seconds = {name: float(s) for name, s in json.load(f).items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self.seconds = {}

    def note(self, name, seconds):
        self.seconds[name] = round(seconds, 2)

    def of(self, s):
        return self.seconds.get(s.name, s.cost)

    def save(self):
        try:
            with open(self.file, "w") as f:
                json.dump(self.seconds, f, indent=0, sort_keys=True)
        except OSError:
            pass  # then the next run begins in another order


class run:
    """A suite that runs, or has run.

    Its parent is a shell of its own, so that a test that kills its parent ends that shell and not this program. It is
    over when the shell has ended and nothing with its mark is left, which it gets GRACE seconds for.
    """

    GRACE = 2.0
    numbers = 0

    def __init__(self, s, scratch):
        run.numbers += 1
        self.suite = s
        self.mark = f"{os.getpid()}-{run.numbers}"
        self.home = os.path.join(scratch, str(run.numbers))
        self.log = os.path.join(self.home, "log")
        self.code_file = os.path.join(self.home, "code")
        self.tmp = os.path.join(self.home, "t")
        self.sockets = os.path.join(self.home, "x")
        self.limit = s.timeout
        self.result = None  # passed, failed, skipped
        self.why = []
        self.hang = ""
        self.pid = 0
        self.is_shell_over = False
        self.has_group = True  # what it began in its own group is not all gone
        self.shell_status = 0
        self.began = time.monotonic()
        self.since_over = 0.0
        self.seconds = self.cpu = 0.0

    def start(self):
        """False: it could not be started, and has failed."""
        try:
            self.start_shell()
        except (OSError, ValueError) as e:
            self.is_shell_over = True
            self.why.append(f"cannot be started: {e}")
            self.result = "failed"
        return self.result is None

    def start_shell(self):
        os.makedirs(self.tmp, mode=0o700)
        os.makedirs(self.sockets, mode=0o700)
        environment = dict(os.environ, TMPDIR=self.tmp, XDG_RUNTIME_DIR=self.sockets, PYTHONFAULTHANDLER="1", PYTHONUNBUFFERED="1",
                           BOOST_TEST_REPORT_LEVEL="short", BOOST_TEST_COLOR_OUTPUT="no", **self.suite.environment)
        environment[processes.MARK] = self.mark
        script = 'out=$1 code=$2; shift 2; "$@" > "$out" 2>&1 < /dev/null; echo $? > "$code"'
        self.began, self.began_at = time.monotonic(), time.time()
        self.next_look, self.computed_before = self.began + 0.8 * self.limit, None
        p = subprocess.Popen(["sh", "-c", script, "test", self.log, self.code_file, *self.suite.command], cwd=self.suite.folder, env=environment,
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                             preexec_fn=processes.default_signals)
        self.pid = p.pid
        p.returncode = 0  # it is waited for by wait4 in the loop

    def shell_ended(self, status, usage):
        self.is_shell_over = True
        self.shell_status = status
        self.seconds = time.monotonic() - self.began
        self.cpu = usage.ru_utime + usage.ru_stime
        self.since_over = time.monotonic()

    def look(self):
        """Called every few milliseconds. True: it is over."""
        now = time.monotonic()
        if not self.is_shell_over:
            if size_of(self.log) > OUTPUT and not self.hang:
                self.stop(f"has written more than {OUTPUT >> 20} MiB")
            elif now > self.next_look and not self.hang and processes.is_living(self.pid):
                self.look_whether_it_hangs(now)
            return False
        self.has_group = self.has_group and processes.is_group(self.pid)
        left = self.processes()
        has_time = now - self.since_over < self.GRACE and not self.hang
        if (left or self.has_group) and has_time and os.path.exists(self.code_file):
            return False
        self.judge(left)
        return True

    # On a busy machine what still computes does not hang: a tenth of a core in the last fifth of its time is enough, up to
    # five times the limit.
    def look_whether_it_hangs(self, now):
        used = processes.computed(self.processes())
        slice_ = self.limit / 5
        computes = self.computed_before is None or used - self.computed_before >= slice_ / 10
        if not computes or now - self.began > 5 * self.limit:
            self.stop(f"has not ended after {now - self.began:.0f} s")
        self.computed_before = used
        self.next_look = now + slice_

    def stop(self, why):
        """Says where it hangs, and ends it."""
        self.why.append(why)
        pids = self.processes()
        self.hang = "\n".join(processes.one_line(p) for p in pids) + "\n" + processes.where_they_hang(pids, self.suite.build_folder)
        self.kill()

    def processes(self):
        return processes.of_test(self.mark, self.pid)

    def kill(self):
        if not self.is_shell_over:
            processes.kill([self.pid])
        elif self.has_group and processes.is_group(self.pid):
            processes.kill_group(self.pid)
        processes.kill_all(self.processes)

    def judge(self, left):
        """`left`: its processes that are there and should not be; None: they had no time to end."""
        code = None
        try:
            with open(self.code_file) as f:
                code = int(f.read())
        except (OSError, ValueError):
            if not self.why:
                self.why.append(f"its parent has been killed (signal {os.WTERMSIG(self.shell_status)})" if os.WIFSIGNALED(self.shell_status)
                                else "its parent ended without a word")
        if code is not None and code not in (0, self.suite.skip_code):
            self.why.append(f"ended with {code}" if code <= 128 or code > 128 + 64 else f"ended by signal {code - 128} ({signal_name(code - 128)})")
        if left is not None and not self.hang:
            self.why += [f"leaves a process behind: {processes.one_line(p)}" for p in left[:20]]
            if len(left) > 20:
                self.why.append(f"... and {len(left) - 20} more")
            if self.has_group and not left and code is not None:
                self.why.append("leaves a process behind, of those that fork and end all the time")
        self.kill()
        if code == self.suite.skip_code and not self.output().strip():
            self.why.append("is skipped without a word why")
        if code in (0, self.suite.skip_code):
            self.why += [f"leaves {os.path.relpath(p, self.tmp)} behind in its temporary folder" for p in things_in(self.tmp)]
            left_there = [os.path.join(at, f) for at, _, files in os.walk(self.sockets) for f in files]
            self.why += [f"leaves {os.path.relpath(p, self.sockets)} behind in its runtime folder" for p in left_there]
        self.over_at = time.time()
        self.result = "failed" if self.why else "skipped" if code == self.suite.skip_code else "passed"

    def output(self):
        """What can be shown of it."""
        text = ends_of(self.log, OUTPUT_KEPT).replace("\r\n", "\n")
        return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)

    def counts(self):
        """Test cases and assertions that it ran."""
        text = self.output()
        cases = re.search(r"^Running (\d+) test cases?", text, re.M) or re.search(r"^Ran (\d+) tests? in", text, re.M)
        assertions = re.findall(r"(\d+) assertions? out of (\d+) passed", text)
        return int(cases.group(1)) if cases else 1, sum(int(b) for _, b in assertions)

    def complaints(self, most=6):
        """The first lines that say what is wrong: the end of a long run's record is often all that is kept."""
        plain = re.sub(r"\\x1b\[[0-9;]*m", "", self.output())
        lines = list(dict.fromkeys(line.strip() for line in plain.splitlines() if COMPLAINT.search(line)))
        return [line[:300] for line in lines[:most]] + ([f"... and {len(lines) - most} more lines"] if len(lines) > most else [])

    def forget(self):
        remove(self.home)


# Boost.Test, unittest, the sanitizers, an assertion of C.
COMPLAINT = re.compile(r"\berror: in |\bfatal error\b|^(FAIL|ERROR): |^\w*(Error|Exception)\b|Sanitizer: |runtime error: |Assertion .* failed|^ +Failure occurred")


def size_of(file):
    try:
        return os.stat(file).st_size
    except OSError:
        return 0


def ends_of(file, most):
    """Its text; of a long one the begin and the end."""
    try:
        with open(file, "rb") as f:
            text = f.read(most)
            left_out = os.fstat(f.fileno()).st_size - 2 * most
            if left_out > 0:
                text += f"\n[... {left_out} bytes ...]\n".encode()
                f.seek(-most, os.SEEK_END)
            return (text + f.read(most)).decode(errors="replace")
    except OSError:
        return ""


def end_of(file, most):
    try:
        with open(file, "rb") as f:
            f.seek(max(0, os.fstat(f.fileno()).st_size - most))
            return f.read(most).decode(errors="replace")
    except OSError:
        return ""


def remove(folder):
    """Also what is deeper than Python recurses, and what its owner may not read."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        for command in (["chmod", "-R", "u+rwX", folder], ["rm", "-rf", folder]):
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, check=False)


def things_in(folder):
    try:
        return [os.path.join(folder, n) for n in sorted(os.listdir(folder))]
    except PermissionError:
        return [folder]
    except OSError:
        return []


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return "?"
