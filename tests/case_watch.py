#!/usr/bin/env python3
"""The watch of test cases ends one that hangs, and says what it waited for.

  case_watch.py HANGING_CASES     # the program of tests/support/hanging_cases.cpp
"""

import os
import re
import shutil
import subprocess
import sys
import unittest

import limits

PROGRAM = ""
HERE = r"tests/support/hanging_cases\.cpp:\d+"
HANG = 120.0  # seconds, against hangs: the watch gives the debugger 20 of them


def run(case, limit):
    """The exit code and all output of that case, which has `limit` seconds; None: as usual."""
    environment = {k: v for k, v in os.environ.items() if k != "TROUPE_TEST_CASE_LIMIT"}
    if limit is not None:
        environment["TROUPE_TEST_CASE_LIMIT"] = limit
    done = limits.run([PROGRAM, f"--run_test=hangs/{case}", "--color_output=no"], env=environment,
                      text=True, errors="replace", stderr=subprocess.STDOUT, seconds=HANG)
    return done.returncode, done.stdout


class case_watch(unittest.TestCase):
    def check_ended(self, case, *texts):
        code, said = run(case, "1")
        self.assertEqual(code, 3, said)
        ended = rf"{HERE}: test case 'hangs/{case}' has not ended after \d+ s\n"
        self.assertRegex(said, ended)
        for text in texts:
            self.assertRegex(said, text)
        # Where its threads are, if the system lets a debugger look.
        if shutil.which("gdb") is None:
            self.assertIn("no backtraces: there is no gdb", said)
        elif "gdb did not show all threads" not in said:
            self.assertRegex(said, rf"#\d+ .*\b{case}::test_method")

    def test_a_thread_that_is_joined_and_never_ends(self):
        self.check_ended("joins", "this was printed before",
                         rf"it waits for a word that nobody says \({HERE}\)\n",
                         rf"it waits for the end of the other thread \({HERE}\)\n")

    def test_a_loop_that_only_computes(self):
        self.check_ended("spins")

    def test_a_poll_before_its_own_limit(self):
        self.check_ended("polls", rf"it waits until it is said \({HERE}\)\n")

    def test_a_poll_ends_by_its_own_limit(self):
        code, said = run("polls_for_a_second", None)
        self.assertEqual(code, 201, said)  # what Boost.Test ends with
        self.assertRegex(said, rf"{HERE}: waited 1 s until it is said\n")
        self.assertNotIn("has not ended", said)

    def test_a_case_that_ends(self):
        for limit in (None, "0", "1000"):
            code, said = run("ends", limit)
            self.assertEqual(code, 0, said)
            self.assertNotIn("has not ended", said)

    def test_a_limit_that_is_none(self):
        for limit in ("", "soon", "-1", "1.5"):
            code, said = run("ends", limit)
            self.assertEqual(code, 2, said)
            self.assertRegex(said, rf"TROUPE_TEST_CASE_LIMIT: .* not '{re.escape(limit)}'")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
