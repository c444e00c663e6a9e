#!/usr/bin/env python3
"""tools/test names what hangs, what leaves something behind and what kills its parent, ends with 1, and leaves nothing itself.

It runs on a project of two files that plants one of each; its compiler is a shell script.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runner")
HANG = 100.0  # seconds: nothing here takes as long

sys.dont_write_bytecode = True
sys.path.insert(0, RUNNER)
import suites

PRESETS = """{ "version": 6, "cmakeMinimumRequired": { "major": 3, "minor": 25, "patch": 0 },
  "configurePresets": [ { "name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build" } ] }"""

PROJECT = """cmake_minimum_required(VERSION 3.25)
project(planted LANGUAGES NONE)
enable_testing()
add_custom_target(check_release COMMAND sh ${CMAKE_SOURCE_DIR}/compiler.sh)
add_custom_target(why_tests COMMAND true)
add_custom_target(runtime_tests COMMAND true)
add_custom_target(check_unit DEPENDS runtime_tests)
add_custom_target(check_actor)
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
    number = 0

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="troupe-runner-")
        self.addCleanup(self.folder.cleanup)
        self.tests = PROJECT
        self.write("CMakePresets.json", PRESETS)
        self.write("compiler.sh", "true\n")
        # Its number of seconds is what a process is found by.
        runner.number += 1
        self.seconds = f"{700000 + os.getpid()}.{runner.number}"

    def write(self, name, text):
        with open(os.path.join(self.folder.name, name), "w") as f:
            f.write(text)

    def plant(self, name, script, properties=""):
        self.write(f"{name}.sh", script)
        self.tests += (f"add_test(NAME {name} COMMAND sh ${{CMAKE_SOURCE_DIR}}/{name}.sh)\n"
                       f'set_tests_properties({name} PROPERTIES LABELS "unit;release" SKIP_RETURN_CODE 77 {properties})\n')

    def environment(self):
        return dict(os.environ, TROUPE_TEST_ROOT=self.folder.name,
                    TROUPE_TEST_SHARED=f"planted-{self.seconds}")

    def begin_tests(self, *arguments, signals=signal.SIG_DFL):
        self.write("CMakeLists.txt", self.tests)
        return subprocess.Popen([sys.executable, "-B", RUNNER, "--preset", "release", *arguments],
                                env=self.environment(),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True,
                                preexec_fn=lambda: [signal.signal(s, signals) for s in
                                                    (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)])

    def wait_for(self, what, is_so):
        until = time.monotonic() + HANG
        while not is_so():
            self.assertLess(time.monotonic(), until, what)
            time.sleep(0.02)

    def run_tests(self, *arguments, **more_environment):
        self.write("CMakeLists.txt", self.tests)
        environment = dict(self.environment(), **more_environment)
        # One preset is planted; what says itself what runs says so by other words.
        says_itself = {"--stress", "--quick", "no such name"} & set(arguments)
        preset = () if says_itself else ("--preset", "release")
        done = subprocess.run([sys.executable, "-B", RUNNER, *preset, *arguments], env=environment, stdin=subprocess.DEVNULL,
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
        self.plant("unit.planted.leaves_shared_memory", f"touch /dev/shm/planted-{self.seconds}")
        shared = f"/dev/shm/planted-{self.seconds}"
        self.addCleanup(lambda: os.path.exists(shared) and os.unlink(shared))
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
        self.assertRegex(said, rf"(?m)^(FAILED|left by .*): /dev/shm/planted-{self.seconds} is left behind, by one of: .*unit\.planted\.leaves_shared_memory")
        self.assertIn("the reason", said)
        self.assertIn("before", said)
        self.assertRegex(said, r"(?m)^1 passed, [78] failed, 0 skipped$")

    def test_a_compiler_that_hangs(self):
        self.write("compiler.sh", f"sleep {self.seconds}\n")
        self.plant("unit.planted.fine", "true")
        code, said = self.run_until_it_hangs()
        self.assertEqual(code, 1, said)
        self.assertRegex(said, rf"(?s)building release, .*sleep {self.seconds}")
        self.assertIn("the time was over", said.splitlines()[-1])

    def test_the_limit_ends_what_runs_and_names_it(self):
        self.plant("unit.planted.hangs", f"echo last words; sleep {self.seconds}", "TIMEOUT 500")
        self.plant("unit.planted.comes_later", "true")
        for limit in ("0.05", "0.25", "1"):  # by when it has begun, however busy the machine is
            code, said = self.run_tests("--limit", limit, "--jobs", "1")
            if "last words" in said:
                break
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

    def test_suites_that_are_odd_fail_and_the_others_run(self):
        self.plant("unit.planted.fine", "echo 17 assertions out of 17 passed")
        self.plant("no_dots", "true")
        self.plant("unit.planted.no_folder", "true", "WORKING_DIRECTORY /no/such/folder")
        self.plant("unit.planted.name", r"touch $TMPDIR/$(printf '\377')")
        self.plant("unit.planted.deep", f"""{sys.executable} -c '
import os
os.chdir(os.environ["TMPDIR"])
for i in range(1100):
    os.mkdir("d")
    os.chdir("d")'""")
        self.plant("unit.planted.zeros", r"printf 'a\000b\377c\033d'; exit 1")
        self.plant("unit.planted.says", "printf 'hello\\n\\033[1m/x/a_test.cpp(7): error: in \"s/c\": check 1 == 2 has failed\\033[0m\\n'; exit 201")
        self.plant("unit.planted.floods", f"yes {self.seconds}")
        self.plant("unit.planted.silent", "exit 77")
        self.plant("unit.planted.homeless", "rm -rf ${TMPDIR%/t}")
        code, said = self.run_tests("--limit", "1", PYTHONIOENCODING="ascii")
        self.assertEqual(code, 1, said)
        for name, why in (("no_folder", "cannot be started: .*No such file or directory"),
                          ("name", "leaves .* behind"), ("deep", "leaves d behind"),
                          ("zeros", "ended with 1"),
                          ("floods", "has written more than 256 MiB"),
                          ("silent", "is skipped without a word why"),
                          ("homeless", "its parent ended without a word")):
            self.assertRegex(said, rf"(?m)^FAILED release unit\.planted\.{name}: .*{why}")
        self.assertRegex(said, r"(?m)^FAILED release unit\.planted\.says: ended with 201\n    "
                         r'/x/a_test\.cpp\(7\): error: in "s/c": check 1 == 2 has failed$')
        self.assertRegex(said, r"(?m)^2 passed, 8 failed, 0 skipped$")
        self.assertNotIn("\0", said)
        self.assertNotIn("\033", said)
        self.assertIn(r"a\x00b", said)

    def test_what_is_not_the_tests_fault_ends_no_run(self):
        os.makedirs(os.path.join(self.folder.name, "build", "test_times.json"))
        # An abstract socket of anybody, with an empty line in its name.
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(f"\0planted-{self.seconds}\n\nx")
            self.plant("unit.planted.fine", "true")
            code, said = self.run_tests()
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"(?m)^1 passed, 0 failed, 0 skipped$")
        self.assertRegex(said.splitlines()[-1], "^tools/test: .*everything passed$")

    def test_a_build_folder_that_cannot_be_written(self):
        self.write("build", "a file")
        self.plant("unit.planted.fine", "true")
        for arguments in ((), ("fine",)):
            code, said = self.run_tests(*arguments)
            self.assertEqual(code, 1, said)
            self.assertNotIn("Traceback", said)
            self.assertRegex(said.splitlines()[-1], "^tools/test: .*: nothing ran$")

    def test_processes_without_the_mark_are_found(self):
        own = f"{sys.executable} -c 'import time; time.sleep({self.seconds})'"
        ends = ("import ctypes, threading, time; "
                f"threading.Thread(target=time.sleep, args=[{self.seconds}]).start(); "
                "ctypes.CDLL(None).pthread_exit(None)")
        self.plant("unit.planted.clears", f"env -i sleep {self.seconds} > /dev/null 2>&1 & exit 0")
        self.plant("unit.planted.first_thread_ends", f"{sys.executable} -c '{ends}' & exit 0")
        self.plant("unit.planted.daemon", f"env -i setsid {own} > /dev/null 2>&1 & exit 0")
        code, said = self.run_tests("--jobs", "1")
        self.assertEqual(code, 1, said)
        for name, command in (("clears", f"sleep {self.seconds}"), ("first_thread_ends", "")):
            self.assertRegex(said, rf"(?m)^FAILED release unit\.planted\.{name}: leaves a process "
                             f"behind: .*{command}")
        self.assertRegex(said, r"(?m)^FAILED left behind by release .*unit\.planted\.daemon.*: pid "
                         rf"\d+ .*time.sleep.{self.seconds}")
        self.assertRegex(said, r"(?m)^1 passed, 3 failed, 0 skipped$")

    def test_processes_that_fork_and_end_are_ended(self):
        forks = f"import os\nwhile True:\n  if os.fork(): os._exit(0)\n# {self.seconds}"
        self.plant("unit.planted.forks", f"{sys.executable} -c '{forks}' & exit 0")
        self.plant("unit.planted.many", f"for i in $(seq 60); do sleep {self.seconds} & done")
        code, said = self.run_tests("--limit", "1")
        self.assertEqual(code, 1, said)
        self.assertRegex(said, r"(?m)^FAILED release unit\.planted\.forks: leaves a process behind")
        self.assertRegex(said, r"(?m)^FAILED release unit\.planted\.many: leaves a process behind")
        for _ in range(20):
            self.assertFalse(is_there(self.seconds), said)

    def test_interrupted_it_leaves_nothing(self):
        self.plant("unit.planted.waits", f"""echo $TMPDIR > $0.home; trap '' INT TERM HUP
setsid sleep {self.seconds} & touch $TMPDIR/$(seq -s ' $TMPDIR/' 2000); kill -STOP $$""")
        home = os.path.join(self.folder.name, "unit.planted.waits.sh.home")
        compiler = os.path.join(self.folder.name, "compiler.sh.home")
        sleeps = f"setsid sleep {self.seconds} & echo > $0.home; wait\n"
        for number, where in ((signal.SIGINT, home), (signal.SIGTERM, compiler),
                              (signal.SIGHUP, home)):
            self.write("compiler.sh", "true\n" if where == home else sleeps)
            p = self.begin_tests()
            self.wait_for("it runs", lambda: os.path.exists(where) and is_there(self.seconds))
            while p.poll() is None:
                p.send_signal(number)
                time.sleep(0.001)
            said, _ = p.communicate()
            self.assertEqual(p.returncode, 128 + number, said)
            self.assertNotIn("Traceback", said)
            self.assertRegex(said.splitlines()[-1], "^tools/test: .*interrupted")
            self.assertFalse(is_there(self.seconds), said)
            if where == home:
                with open(home) as f:
                    scratch = os.path.dirname(os.path.dirname(f.read().strip()))
                self.assertFalse(os.path.exists(scratch), scratch)
            os.unlink(where)

    def test_in_the_background_suites_have_the_signals_that_they_always_have(self):
        self.plant("unit.planted.signals", "for s in INT QUIT HUP TERM; do "
                   """trap "echo $s came" $s; kill -$s $$; done; trap - INT; kill -INT $$; sleep 5""")
        p = self.begin_tests(signals=signal.SIG_IGN)
        said, _ = p.communicate()
        for name in ("INT", "QUIT", "HUP", "TERM"):
            self.assertIn(f"{name} came", said)
        self.assertRegex(said, r"(?m)^FAILED release unit\.planted\.signals: .*(SIGINT|130|signal 2)")

    def test_nobody_listens(self):
        self.plant("unit.planted.hangs", f"sleep {self.seconds}")
        p = self.begin_tests("--limit", "1")
        p.stdout.readline()
        p.stdout.close()
        self.wait_for("it runs", lambda: p.poll() is not None or is_there(self.seconds))
        p.send_signal(signal.SIGHUP)
        self.assertIn(p.wait(timeout=HANG), (1, 128 + signal.SIGHUP))
        self.assertFalse(is_there(self.seconds))

    def run_until_it_hangs(self, *arguments):
        """With a limit that is over once what hangs has begun, however busy the machine is."""
        for limit in ("0.02", "0.1", "0.5", "1.25"):
            code, said = self.run_tests("--limit", limit, *arguments)
            if f"sleep {self.seconds}" in said:
                break
        return code, said

    def test_who_could_not_be_started_is_nobody(self):
        # In a group of its own, which kill(0) would end.
        done = subprocess.run(
            [sys.executable, "-c", "import processes; processes.kill([0]); assert not processes.of_test('none', 0); print('lives')"],
            cwd=RUNNER, start_new_session=True, capture_output=True, text=True, timeout=HANG)
        self.assertEqual((done.returncode, done.stdout), (0, "lives\n"), done.stderr)

    def test_cmake_that_hangs(self):
        self.plant("unit.planted.fine", "true")
        self.tests += f"execute_process(COMMAND sleep {self.seconds})\n"
        for arguments in ((), ("fine",)):
            code, said = self.run_until_it_hangs(*arguments)
            self.assertEqual(code, 1, said)
            self.assertRegex(said, rf"(?s)building release, .*sleep {self.seconds}")
            self.assertRegex(said.splitlines()[-1], "^tools/test: .*the time was over$")

    def test_a_limit_is_a_number_that_comes(self):
        for limit in ("nan", "0"):
            code, said = self.run_tests(f"--limit={limit}")
            self.assertEqual(code, 2, said)

    def test_quick_runs_what_is_pure_and_actors(self):
        for name in ("unit.runtime.why", "actor.actors.session", "multiprocess.why", "fuzz.frame",
                     "unit.computing.ops", "gpu.streams"):
            self.plant(name, "true")
        code, said = self.run_tests("--quick")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"(?m)^2 passed, 0 failed, 0 skipped$")
        self.assertIn("unit.runtime.why", said)
        self.assertIn("actor.actors.session", said)

    def test_all_are_skipped(self):
        self.plant("unit.why.skipped", "echo 'no GPU'; exit 77")
        code, said = self.run_tests("skipped")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"(?m)^0 passed, 0 failed, 1 skipped$")
        self.assertRegex(said.splitlines()[-1], "everything was skipped$")

    def test_what_has_ended_does_not_hang(self):
        # As after another one's backtraces, which took longer than this one's time.
        s = suites.suite("release", "/", {
            "name": "unit.planted.fine", "command": ["true"],
            "properties": [{"name": "TIMEOUT", "value": 1}]})
        r = suites.run(s, self.folder.name)
        r.start()
        os.waitid(os.P_PID, r.pid, os.WEXITED | os.WNOWAIT)
        r.next_look, r.computed_before = 0.0, 0.0
        r.look()
        r.shell_ended(*os.wait4(r.pid, 0)[1:])
        self.assertTrue(r.look())
        self.assertEqual((r.result, r.why), ("passed", []))


if __name__ == "__main__":
    unittest.main()
