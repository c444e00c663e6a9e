#!/usr/bin/env python3
"""`troupe` on a terminal: draws, redraws, leaves on q, Ctrl-C or a signal, and puts the terminal back: terminal.py PATH_OF_TROUPE"""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

import limits

TROUPE = sys.argv.pop(1)
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


class terminal(unittest.TestCase):
    def setUp(self):
        # A user without any cluster: what is drawn is the line that says so.
        self.folder = tempfile.TemporaryDirectory()
        self.environment = dict(os.environ, XDG_RUNTIME_DIR=self.folder.name, TMPDIR=self.folder.name)
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 60, 0, 0))
        self.mode = termios.tcgetattr(self.slave)

    def tearDown(self):
        os.close(self.master)
        os.close(self.slave)
        self.folder.cleanup()

    def start(self, *arguments):
        return subprocess.Popen([TROUPE, "--timeout", "200ms", *arguments], stdin=self.slave, stdout=self.slave, stderr=self.slave,
                                env=self.environment)

    def read_until(self, part, seconds=20):
        seen, end = b"", time.monotonic() + seconds
        while part not in seen:
            if not select.select([self.master], [], [], max(0.0, end - time.monotonic()))[0]:
                self.fail(f"{part} was not drawn: {seen}")
            seen += os.read(self.master, 65536)
        return seen

    def finish(self, process, code):
        seen = self.read_until(LEAVE)
        try:
            self.assertEqual(process.wait(timeout=20), code)
        except subprocess.TimeoutExpired:
            process.kill()
            command = " ".join(process.args)
            self.fail(f"{command} did not end within 20 s; it drew\n{limits.tail(seen)}")
        self.assertEqual(termios.tcgetattr(self.slave), self.mode)
        return seen

    def test_q_leaves_and_the_page_is_redrawn_until_then(self):
        self.assertNotEqual(self.mode[3] & termios.ECHO, 0)
        process = self.start()
        self.read_until(ENTER)
        self.read_until(b"troupe: ")
        self.assertEqual(termios.tcgetattr(self.slave)[3] & termios.ECHO, 0)
        self.read_until(b"\x1b[H")
        self.read_until(b"troupe: ")
        os.write(self.master, b"x")  # any other key redraws
        self.read_until(b"troupe: ")
        os.write(self.master, b"q")
        self.finish(process, 0)

    def test_Ctrl_C_and_signals_leave_too(self):
        for leave in (lambda p: os.write(self.master, b"\x03"), lambda p: p.send_signal(signal.SIGTERM),
                      lambda p: p.send_signal(signal.SIGINT), lambda p: os.write(self.master, b"\x04")):
            process = self.start()
            self.read_until(b"troupe: ")
            leave(process)
            self.finish(process, 0)

    def test_in_a_pipe_it_prints_once_without_escapes_and_ends_with_3(self):
        done = limits.run([TROUPE, "--timeout", "200ms"], env=self.environment, seconds=20)
        self.assertEqual(done.returncode, 3)
        self.assertEqual(done.stdout, b"")
        self.assertNotIn(b"\x1b", done.stderr)
        self.assertIn(b"troupe-node", done.stderr)  # how to start one

    def test_wait_retries_until_its_timeout(self):
        began = time.monotonic()
        done = limits.run([TROUPE, "wait", "nodes=1", "--timeout", "700ms"], env=self.environment,
                          seconds=20)
        self.assertEqual(done.returncode, 4)
        self.assertGreaterEqual(time.monotonic() - began, 0.6)
        self.assertIn(b"after 700 ms", done.stderr)

    def test_usage_and_version_need_no_cluster(self):
        run = lambda *a: limits.run([TROUPE, *a], env=self.environment, seconds=20, text=True)
        self.assertEqual(run("lst").returncode, 2)
        self.assertEqual(run("version").stdout.split()[0], "troupe")
        self.assertEqual(run("--help").returncode, 0)
        full = open("/dev/full", "w")
        self.assertEqual(limits.run([TROUPE, "version"], stdout=full).returncode, 1)
        full.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
