#!/usr/bin/env python3
"""Builds and runs the tests: see tools/test --help.

One loop, one thread: it waits for children (builds, and runs of suites), begins what may begin, and looks at the clock.

RN-1  Every run ends: a suite after its TIMEOUT, all of it after --limit, with what hung, and where.
RN-2  Nothing that was started is left: processes are found by a mark that they inherit, whoever their parent is.
RN-3  What did not run is a failure, but for what says itself why it is skipped.
"""

import argparse
import errno
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import builds
import processes
import report
import suites

# Another folder: of a project that the tests of this program make (tests/runner_test.py).
ROOT = os.environ.get("TROUPE_TEST_ROOT") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# What each preset builds and runs, where it finds most (tests/README.md).
ALL = {
    "release": (["check_release"], lambda s: "release" in s.labels),
    "debug": (["check_unit", "check_actor"], lambda s: s.label in ("unit", "actor") and ".house." not in s.name),
    "tsan": (["check_actor"], lambda s: s.label == "actor"),
}
EVERYTHING = {**ALL, "release": (["all"], lambda s: True)}
QUICK = {"release": (["check_unit", "check_actor"], lambda s: s.label in ("unit", "actor") and s.needs in QUICK_NEEDS)}
QUICK_NEEDS = (None, "schema_tests", "devices_tests", "cuda_kernels_tests", "cuda_tests", "runtime_tests", "tool_tests", "actors_tests")


def options():
    p = argparse.ArgumentParser(prog="tools/test", formatter_class=argparse.RawDescriptionHelpFormatter, description=(
        "Builds and runs the tests. Without arguments all of them, each under the preset where it finds most, which is what\n"
        "continuous integration runs; with PATTERNs the suites whose names match one of them, under one preset."),
        epilog=("examples:\n  tools/test                            all\n  tools/test --quick                    after a change\n"
                "  tools/test why segments               suites by name, in release\n"
                "  tools/test --preset tsan session      one under ThreadSanitizer\n"
                "  tools/test --stress 10 recovery       ten times, with two busy processes beside\n\n"
                "exit codes: 0 everything passed, 1 something failed or hung, 2 the arguments are wrong, 128 + N by signal N (130: Ctrl-C)"))
    p.add_argument("patterns", nargs="*", metavar="PATTERN", help="regular expressions, searched for in the names of suites")
    p.add_argument("--quick", action="store_true", help="in release: what is labelled unit and actor")
    p.add_argument("--all", action="store_true", help="in release: everything, with all its repetitions")
    p.add_argument("--preset", choices=["release", "debug", "tsan"], help="this one alone (default: with PATTERNs release, else all three)")
    p.add_argument("--stress", type=int, metavar="N", help="every suite N times, in random order, with two busy processes beside")
    p.add_argument("--seed", type=int, help="of the random order")
    p.add_argument("--limit", type=float, metavar="MIN", help="end after that many minutes and say what hung (default: 60; with --stress 60 N)")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="suites that compute at once, and as many that wait (default: the cores)")
    o = p.parse_args()
    if o.quick + o.all + bool(o.patterns) > 1:
        p.error("--quick, --all and PATTERNs are three ways to say what runs")
    if o.preset and (o.quick or o.all):
        p.error("--quick and --all say themselves which presets")
    is_limit = o.limit is None or (o.limit > 0 and math.isfinite(o.limit))
    if o.stress is not None and o.stress < 1 or o.jobs < 1 or not is_limit:
        p.error("--stress, --jobs and --limit take numbers above 0")
    for pattern in o.patterns:
        try:
            re.compile(pattern)
        except re.error as e:
            p.error(f"'{pattern}' is no regular expression: {e}")
    o.limit = o.limit or 60.0 * (o.stress or 1)
    return o


def set_environment():
    e = os.environ
    e.setdefault("ASAN_OPTIONS", "detect_stack_use_after_return=1")
    e.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    symbolizer = shutil.which("llvm-symbolizer-19")
    if "TSAN_OPTIONS" not in e:
        # What is suppressed would else be kept in a list that every further report searches: the longer a process lives, the slower it gets.
        e["TSAN_OPTIONS"] = f"suppressions={ROOT}/tools/tsan.supp:suppress_equal_addresses=0"
        if symbolizer:
            e["TSAN_OPTIONS"] += f":external_symbolizer_path={symbolizer}"
    # Reports of programs that clang made are put into words by a program of the same version.
    if symbolizer:
        e.setdefault("ASAN_SYMBOLIZER_PATH", symbolizer)


class session:
    def __init__(self, o):
        self.o = o
        self.began = time.monotonic()
        self.scratch = tempfile.mkdtemp(prefix="tt-", dir="/tmp")  # short: sockets have their paths in it
        self.builds, self.pending, self.running, self.over = [], [], [], []
        self.busy = []
        self.unplanned = []  # presets that could not be asked, suites without a program
        self.left = []  # processes that no suite can be blamed for
        self.times = {}
        self.said = self.began
        self.shared = processes.shared_things()
        self.is_out_of_time = False
        self.others_looked, self.are_others_there = 0.0, False
        self.rng = random.Random(o.seed if o.seed is not None else int(time.time()))

    # --- what to do ---

    def plan(self):
        o = self.o
        chosen = QUICK if o.quick else EVERYTHING if o.all else ALL
        if o.patterns or o.preset:
            preset = o.preset or "release"
            chosen = {preset: (None, lambda s: not o.patterns or any(re.search(p, s.name) for p in o.patterns))}
            if not o.patterns:
                chosen = {preset: ALL[preset]}
        self.chosen = chosen
        for preset, (targets, _) in chosen.items():
            self.builds.append(builds.build(ROOT, preset, targets or [], self.scratch))
        if o.patterns:
            self.plan_targets(self.builds[0])

    # The suites are known once CMake has run, and tell what has to be built for them.
    def plan_targets(self, b):
        if not b.configure(self.began + self.o.limit * 60 - time.monotonic()):
            if b.state == "configuring":
                return self.out_of_time()
            return print(b.output())
        wanted = [s for s in self.suites_of(b) if self.chosen[b.preset][1](s)]
        if not wanted:
            if not self.unplanned:
                print(f"no suite of preset {b.preset} has a name that matches "
                      f"{' or '.join(self.o.patterns)}; all names: "
                      f"ctest --test-dir {os.path.relpath(b.folder)} --show-only")
            b.state = "done"
            return
        b.targets = sorted({s.target() for s in wanted} - {None})
        if not b.targets:
            b.state = "done"
            self.take_suites(b)

    def suites_of(self, b):
        try:
            return suites.read_suites(b.preset, b.folder)
        except (OSError, ValueError, LookupError, subprocess.SubprocessError) as e:
            self.unplanned.append(f"{b.preset}: ctest cannot be asked what it has: {e}")
            return []

    def take_suites(self, b):
        known = self.times[b.preset] = suites.times(b.folder)
        found = []
        for s in self.suites_of(b):
            s.needs = s.target()
            if self.chosen[b.preset][1](s):
                found.append(s)
        for s in found:
            if s.command is None:
                self.unplanned.append(f"{s}: its program is not there")
        found = [s for s in found if s.command is not None]
        if self.o.stress:
            found = found * self.o.stress
            self.pending += found
            self.rng.shuffle(self.pending)
        else:
            self.pending += sorted(found, key=lambda s: -known.of(s))

    # --- the loop ---

    def go_on(self):
        self.begin_build()
        self.begin_suites()
        self.reap()
        if time.monotonic() - self.others_looked > 2:
            self.others_looked = time.monotonic()
            self.are_others_there |= processes.others_run(f"{os.getpid()}-")
        for r in [r for r in self.running if r.look()]:
            self.ended(r)
        if time.monotonic() - self.began > self.o.limit * 60:
            self.out_of_time()
        self.show_progress()

    def begin_build(self):
        if any(b.state == "compiling" for b in self.builds):
            return
        waiting = [b for b in self.builds if b.state == "waiting"]
        if waiting:
            self.say(f"building {waiting[0].preset}")
            if not waiting[0].start(nice=waiting[0] is not self.builds[0]):
                self.built(waiting[0])

    def begin_suites(self):
        if self.o.stress and any(b.state in ("waiting", "compiling") for b in self.builds):
            return
        if self.o.stress and self.pending and not self.busy:
            self.begin_busy()
        while self.pending and not any(r.suite.is_alone for r in self.running):
            at = next((i for i, s in enumerate(self.pending) if self.has_room_for(s)), None)
            if at is None:
                return
            r = suites.run(self.pending.pop(at), self.scratch)
            self.running.append(r)
            if not r.start():
                self.ended(r)

    # Suites that wait have as many places of their own.
    def has_room_for(self, s):
        if s.is_alone:
            return not self.running
        return sum(r.suite.is_waiting == s.is_waiting for r in self.running) < self.o.jobs

    # Two processes that compute, one of which copies 64 MiB again and again, so that caches and memory are taken, too.
    def begin_busy(self):
        copies = "a = bytearray(1 << 26)\nb = bytearray(1 << 26)\nwhile True: b[:] = a"
        for code in ("while True: pass", copies):
            p = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, start_new_session=True)
            p.returncode = 0
            self.busy.append(p.pid)

    # Not for ever, where a test makes orphans all the time.
    def reap(self):
        for _ in range(1000):
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                pid = 0
            if pid == 0:
                return time.sleep(0.05)
            if pid in self.busy:
                self.busy.remove(pid)
            for b in self.builds:
                if b.pid == pid and b.state == "compiling":
                    b.ended(status, usage)
                    self.built(b)
            for r in self.running:
                if r.pid == pid and not r.is_shell_over:
                    r.shell_ended(status, usage)

    def built(self, b):
        hits, misses = b.cache()
        if b.state == "failed":
            print(f"\n{b.why_it_failed()}")
            return self.say(f"{b.preset}: NOT BUILT ({report.span(b.seconds)}), all of it: {os.path.relpath(b.log)}")
        self.say(f"built {b.preset} in {report.span(b.seconds)}; {hits} of {hits + misses} sources were in the cache")
        self.take_suites(b)

    def ended(self, r):
        self.running.remove(r)
        self.over.append(r)
        r.counts_kept = r.counts()
        r.complaints_kept = r.complaints() if r.result == "failed" else []
        if r.result != "skipped":
            self.times[r.suite.preset].note(r.suite.name, r.seconds)
        count = f"[{len(self.over)}/{len(self.over) + len(self.running) + len(self.pending)}]"
        if r.result == "failed":
            self.say(f"{count} {r.suite}: FAILED after {report.span(r.seconds)}: {'; '.join(r.why)}")
            print(shortened(r.output()), r.hang, sep="\n", flush=True)
        elif r.result == "skipped":
            reason = r.output().strip().splitlines()
            self.say(f"{count} {r.suite}: skipped: {reason[-1][:200] if reason else 'without a word'}")
        else:
            self.say(f"{count} {r.suite} {report.span(r.seconds)}")
        r.forget()

    # RN-1.
    def out_of_time(self):
        self.is_out_of_time = True
        self.say(f"--limit: {self.o.limit:g} min are over; what runs is ended")
        for b in self.builds:
            if b.state in ("configuring", "compiling"):
                print(f"building {b.preset}, {b.progress()}:", *b.what_runs(), sep="\n")
                b.end()
                b.state, b.seconds = "stopped", time.monotonic() - b.began
        for r in list(self.running):
            self.reap()  # it may have ended while another one was looked at
            if not r.is_shell_over:
                r.stop("has not ended when the time was over")
                r.seconds = time.monotonic() - r.began
            r.judge(None)
            self.ended(r)

    def is_over(self):
        return self.is_out_of_time or not (self.pending or self.running or any(b.state in ("waiting", "compiling") for b in self.builds))

    # What has neither the mark nor the session of its test, and whose parent has ended. While tests
    # run it may be one of theirs.
    def look_for_strays(self):
        own = {*self.busy, *(b.pid for b in self.builds)}
        until = time.monotonic() + (0 if self.is_out_of_time else suites.run.GRACE)
        while (pids := processes.strays(own)) and time.monotonic() < until:
            self.reap()
        for p in pids:
            at = time.monotonic() - processes.age_of(p)
            of = [str(r.suite) for r in self.over if r.began - 1 < at < r.began + r.seconds + 1]
            by = " or ".join(of[:8]) or "nobody knows what"
            self.left.append(f"left behind by {by}: {processes.one_line(p)}")
        processes.kill_all(lambda: processes.strays(own))

    # --- what people see ---

    def say(self, line):
        self.said = time.monotonic()
        print(f"{clear_line()}{self.clock()} {line}", flush=True)

    def clock(self):
        t = int(time.monotonic() - self.began)
        return f"{t // 60:02}:{t % 60:02}"

    def show_progress(self):
        building = [f"building {b.preset} {b.progress()}" for b in self.builds if b.state == "compiling"]
        now = building + [r.suite.name for r in self.running]
        if sys.stdout.isatty():
            print(f"\r\033[K{self.clock()} {len(self.pending)} to go; {', '.join(now)}"[:118], end="", flush=True)
        elif time.monotonic() - self.said > 60:
            self.say("... " + ", ".join(now))

    # In places that all share, a thing that is there for a moment belongs to somebody who runs: what is left is what is
    # there when everybody has ended. Who was running when it was made may have left it.
    def left_behind(self):
        texts = []
        for thing in sorted(processes.shared_things() - self.shared):
            try:
                made = os.lstat(thing).st_ctime
            except OSError:
                made = None
            who = [str(r.suite) for r in self.over if made is None or r.began_at - 1 <= made <= r.over_at + 1]
            texts.append(f"{thing} is left behind, by one of: {', '.join(who[:8]) or 'nobody who ran then'}")
        return texts

    def finish(self):
        self.look_for_strays()
        for t in self.times.values():
            t.save()
        failed = [r for r in self.over if r.result == "failed"]
        lines = [""] + (report.stress(self.over) if self.o.stress and self.over else []) + report.table(self.over) + report.slowest(self.over)
        lines += report.compiler(self.builds, sum(r.cpu for r in self.over))
        not_run = [f"{b.preset}: not built ({b.state})" for b in self.builds if b.state != "done"] + self.unplanned
        not_run += self.left
        not_run += [f"{s}: not run" for s in (self.pending if self.is_out_of_time else [])]
        left = self.left_behind()
        for r in failed:
            lines += [f"FAILED {r.suite}: {'; '.join(r.why)}"] + [f"    {line}" for line in r.complaints_kept]
        is_clean = not left or self.are_others_there
        lines += [f"{'FAILED' if not is_clean else 'left by these tests or by others that ran on this machine'}: {text}" for text in left]
        lines += [f"FAILED {n}" for n in not_run[:40]] + ([f"... and {len(not_run) - 40} more"] if len(not_run) > 40 else [])
        is_good = bool(self.over) and is_clean and not failed and not not_run and not self.is_out_of_time
        count = {k: sum(r.result == k for r in self.over) for k in ("passed", "failed", "skipped")}
        lines.append(f"{count['passed']} passed, {count['failed'] + len(not_run) + (0 if is_clean else len(left))} failed, {count['skipped']} skipped")
        good = "everything passed" if count["passed"] else "everything was skipped"
        bad = "FAILED" if self.over else "nothing ran"
        bad = "the time was over" if self.is_out_of_time else bad
        verdict = good if is_good else bad
        compiling = sum(b.cpu for b in self.builds)
        tests = sum(r.cpu for r in self.over)
        lines.append(f"tools/test: {len(self.over)} suites, {sum(r.counts_kept[0] for r in self.over if r.result != 'skipped')} cases in "
                     f"{report.span(time.monotonic() - self.began)}, {100 * compiling / max(compiling + tests, 1e-9):.0f} % of it the compiler: {verdict}")
        print("\n".join(lines), flush=True)
        return 0 if is_good else 1

    # RN-2.
    def end(self):
        for b in self.builds:
            if b.state in ("configuring", "compiling"):
                b.end()
        for r in self.running:
            r.kill()
        own = f"{os.getpid()}-"
        processes.kill_all(lambda: processes.with_marks_of(own) + processes.strays(()))
        suites.remove(self.scratch)


def clear_line():
    return "\r\033[K" if sys.stdout.isatty() else ""


def shortened(text, most=30000):
    return text if len(text) <= most else text[:most // 3] + f"\n[... {len(text) - most} characters ...]\n" + text[-2 * most // 3:]


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def main():
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")
    sys.stdout.reconfigure(errors="backslashreplace")  # names of files are any bytes
    o = options()
    set_environment()
    processes.adopt_orphans()
    has_ended = []

    # Once: a second one leaves to the first what it does.
    def interrupted(number, _):
        if not has_ended:
            has_ended.append(number)
            raise SystemExit(128 + number)
    s = session(o)
    try:
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, interrupted)
        s.plan()
        while not s.is_over():
            s.go_on()
        return s.finish()
    except OSError as e:
        if e.errno not in (errno.EPIPE, errno.EIO):
            raise
        return nobody_listens()
    finally:
        is_interrupted = bool(has_ended)
        has_ended.append(0)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # also while Python itself ends
        s.end()
        if is_interrupted:
            try:
                print(f"{clear_line()}tools/test: {len(s.over)} suites: interrupted by "
                      f"{signal.Signals(has_ended[0]).name}", flush=True)
            except OSError:
                nobody_listens()


def nobody_listens():
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


if __name__ == "__main__":
    sys.exit(main())
