#!/usr/bin/env python3
"""tools/test names what hangs, what leaves something behind and what kills its parent, ends with 1, and leaves nothing itself.

It runs on a project of two files that plants one of each; its compiler is a shell script.
"""

import os
import subprocess
import sys
import tempfile
import unittest

RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runner")
HANG = 100.0  # seconds: nothing here takes as long

PRESETS = """{ "version": 6, "cmakeMinimumRequired": { "major": 3, "minor": 25, "patch": 0 },
  "configurePresets": [ { "name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build" } ] }"""

PROJECT = """cmake_minimum_required(VERSION 3.25)
project(planted LANGUAGES NONE)
enable_testing()
add_custom_target(check_release COMMAND sh ${CMAKE_SOURCE_DIR}/compiler.sh)
add_custom_target(why_tests COMMAND true)
"""


def is_there(mark):
    """Whether a process is there whose command has that word."""
    for p in os.listdir("/proc"):
        try:
            with open(f"/proc/{p}/cmdline", "rb") as f:
                if mark.encode() in f.read():
                    return True
        except OSError:
            pass
    return False


class runner(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="troupe-runner-")
        self.addCleanup(self.folder.cleanup)
        self.tests = PROJECT
        self.write("CMakePresets.json", PRESETS)
        self.write("compiler.sh", "true\n")
        # Its number of seconds is what a process is found by.
        self.seconds = str(700000 + os.getpid())

    def write(self, name, text):
        with open(os.path.join(self.folder.name, name), "w") as f:
            f.write(text)

    def plant(self, name, script, properties=""):
        self.write(f"{name}.sh", script)
        self.tests += (f"add_test(NAME {name} COMMAND sh ${{CMAKE_SOURCE_DIR}}/{name}.sh)\n"
                       f'set_tests_properties({name} PROPERTIES LABELS "unit;release" SKIP_RETURN_CODE 77 {properties})\n')

    def run_tests(self, *arguments):
        self.write("CMakeLists.txt", self.tests)
        environment = dict(os.environ, TROUPE_TEST_ROOT=self.folder.name)
        done = subprocess.run([sys.executable, "-B", RUNNER, *(() if "--stress" in arguments or "no such name" in arguments else ("--preset", "release")), *arguments], env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG)
        self.assertFalse(is_there(self.seconds), done.stdout)
        return done.returncode, done.stdout

    def test_what_passes_and_what_is_skipped(self):
        self.plant("unit.planted.fine", "echo 'Running 3 test cases...'; echo '17 assertions out of 17 passed'")
        self.plant("unit.planted.skipped", "echo 'skipped: no GPU'; exit 77")
        code, said = self.run_tests()
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"(?m)^1 passed, 0 failed, 1 skipped$")
        self.assertRegex(said, r"release  unit +2 +3 +17 +1 +0 ")
        self.assertRegex(said, r"unit\.planted\.skipped: skipped: skipped: no GPU")
        self.assertRegex(said.splitlines()[-1], r"^tools/test: 2 suites, 3 cases in .*: everything passed$")

    def test_each_planted_fault_is_named(self):
        self.plant("unit.planted.fails", "echo the reason; exit 3")
        self.plant("unit.planted.crashes", "kill -SEGV $$")
        self.plant("unit.planted.hangs", f"echo before; sleep {self.seconds}", "TIMEOUT 1")
        self.plant("unit.planted.leaves_a_process", f"setsid sleep {self.seconds} > /dev/null 2>&1 & exit 0")
        self.plant("unit.planted.kills_its_parent", f"kill -9 $PPID; sleep {self.seconds}")
        self.plant("unit.planted.leaves_a_folder", "mkdir $TMPDIR/left_here")
        self.plant("unit.planted.leaves_a_socket", "mkdir $XDG_RUNTIME_DIR/fine; touch $XDG_RUNTIME_DIR/fine/socket")
        self.plant("unit.planted.leaves_shared_memory", f"touch /dev/shm/troupe-planted-{self.seconds}")
        self.addCleanup(lambda: os.path.exists(f"/dev/shm/troupe-planted-{self.seconds}") and os.unlink(f"/dev/shm/troupe-planted-{self.seconds}"))
        code, said = self.run_tests("--jobs", "1")
        self.assertEqual(code, 1, said)
        for name, why in (("fails", "ended with 3"), ("crashes", r"ended by signal 11 \(SIGSEGV\)"), ("hangs", "has not ended after 1 s"),
                          ("leaves_a_process", rf"leaves a process behind: pid \d+ .*sleep {self.seconds}"),
                          ("kills_its_parent", r"its parent has been killed \(signal 9\)"),
                          ("leaves_a_folder", "leaves left_here behind in its temporary folder"),
                          ("leaves_a_socket", "leaves fine/socket behind in its runtime folder"),
                          ):
            self.assertRegex(said, rf"(?m)^FAILED release unit\.planted\.{name}: .*{why}", said)
        # Who else tests on this machine may have left it, for what the runner knows.
        self.assertRegex(said, rf"(?m)^(FAILED|left by .*): /dev/shm/troupe-planted-{self.seconds} is left behind, by one of: .*unit\.planted\.leaves_shared_memory")
        self.assertIn("the reason", said)
        self.assertIn("before", said)
        self.assertRegex(said, r"(?m)^1 passed, [78] failed, 0 skipped$")

    def test_a_compiler_that_hangs(self):
        self.write("compiler.sh", f"sleep {self.seconds}\n")
        self.plant("unit.planted.fine", "true")
        code, said = self.run_tests("--limit", "0.05")
        self.assertEqual(code, 1, said)
        self.assertRegex(said, rf"(?s)building release, .*sleep {self.seconds}")
        self.assertIn("the time was over", said.splitlines()[-1])

    def test_the_limit_ends_what_runs_and_names_it(self):
        self.plant("unit.planted.hangs", f"echo last words; sleep {self.seconds}", "TIMEOUT 500")
        self.plant("unit.planted.comes_later", "true")
        code, said = self.run_tests("--limit", "0.05", "--jobs", "1")
        self.assertEqual(code, 1, said)
        self.assertRegex(said, r"unit\.planted\.hangs: .*has not ended when the time was over")
        self.assertIn("last words", said)

    def test_what_cannot_be_built_fails_and_says_why(self):
        self.write("compiler.sh", "echo 'error: no such thing'; exit 1\n")
        self.plant("unit.planted.fine", "true")
        code, said = self.run_tests()
        self.assertEqual(code, 1, said)
        self.assertIn("error: no such thing", said)
        self.assertIn("nothing ran", said.splitlines()[-1])

    def test_patterns_and_stress(self):
        self.plant("unit.why.one", "true")
        self.plant("unit.why.two", "[ ! -e $0.seen ] || exit 1; touch $0.seen")
        self.plant("unit.why.other", "exit 1")
        code, said = self.run_tests("--stress", "3", "--seed", "1", "why.(one|two)")
        self.assertEqual(code, 1, said)
        self.assertRegex(said, r"(?m)^ +3 +2 .* release unit\.why\.two$")
        self.assertRegex(said, r"(?m)^ +3 +0 .* release unit\.why\.one$")
        self.assertNotIn("unit.why.other", said)
        code, said = self.run_tests("no such name")
        self.assertEqual(code, 1)
        self.assertIn("no suite of preset release has a name that matches no such name", said)


if __name__ == "__main__":
    unittest.main()
