#!/usr/bin/env python3
"""tools/quickstart leaves no process and no folder behind, however it ends: quickstart.py ROOT

Runs the script of ROOT in a tree of its own, where the build and the programs are small stand-ins, so that it takes seconds. The real
programs run in the tests labelled multiprocess.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import limits

ROOT = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else pathlib.Path(".")

NODE = '#!/bin/bash\necho $$ >> {log}/nodes\necho "$XDG_RUNTIME_DIR" > {log}/scratch\ntrap "exit 0" TERM\nwhile :; do sleep 0.05; done\n'
STUBBORN = '#!/bin/bash\necho $$ >> {log}/nodes\ntrap "" TERM INT\nwhile :; do sleep 0.05; done\n'
TOOL = '#!/bin/bash\necho "tool $*" >> {log}/calls\n[ "$1" = status ] && echo "THE STATUS"\nexit 0\n'
TRAIN = '#!/bin/bash\necho "train $*" >> {log}/calls\necho $$ > {log}/train\necho "accuracy 0.9"\n'
SLOW_TRAIN = '#!/bin/bash\necho $$ > {log}/train\ntrap "exit 1" TERM\nwhile :; do sleep 0.05; done\n'
FAILING = "#!/bin/bash\nexit 1\n"
FINE = "#!/bin/bash\nexit 0\n"


class quickstart(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="quickstart-test."))
        self.log = self.folder / "log"
        self.tree = self.folder / "tree"
        for folder in (self.log, self.tree / "tools", self.tree / "build/bin", self.folder / "path"):
            folder.mkdir(parents=True)
        shutil.copy(ROOT / "tools/quickstart", self.tree / "tools/quickstart")
        self.put("tree/tools/setup", FINE)
        self.put("path/cmake", FINE)
        self.put("path/ninja", FINE)
        self.put("tree/build/bin/troupe-node", NODE)
        self.put("tree/build/bin/troupe", TOOL)
        self.put("tree/build/bin/train_classifier", TRAIN)

    def tearDown(self):
        shutil.rmtree(self.folder)

    def put(self, path, text):
        file = self.folder / path
        file.write_text(text.replace("{log}", str(self.log)))
        file.chmod(0o755)

    def start(self, *arguments):
        environment = dict(os.environ, PATH=f"{self.folder}/path:{os.environ['PATH']}")
        return subprocess.Popen([str(self.tree / "tools/quickstart"), *arguments], env=environment, cwd="/",
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def finish(self, process, code, seconds=30):
        out, _ = limits.output_of(process, seconds)
        self.assertEqual(process.returncode, code, out)
        for pid in self.pids():
            self.assertFalse(os.path.exists(f"/proc/{pid}"), f"process {pid} was left behind\n{out}")
        scratch = self.log / "scratch"
        if scratch.exists():
            self.assertFalse(os.path.exists(scratch.read_text().strip()), "the scratch folder was left behind")
        return out

    def pids(self):
        return [line for name in ("nodes", "train") if (self.log / name).exists() for line in (self.log / name).read_text().split()]

    def wait_for(self, name, lines=1):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if (self.log / name).exists() and len((self.log / name).read_text().split()) >= lines:
                return
            time.sleep(0.01)
        self.fail(f"no {name} within 20 s")

    def test_it_trains_over_three_nodes_and_shows_accuracy_and_status(self):
        out = self.finish(self.start("--epochs", "2", "--data", "/tmp"), 0)
        self.assertIn("accuracy 0.9", out)
        self.assertIn("THE STATUS", out)
        self.assertEqual(len((self.log / "nodes").read_text().split()), 3)
        calls = (self.log / "calls").read_text()
        self.assertIn("tool wait nodes=3 --cluster quickstart-", calls)
        self.assertRegex(calls, r"train --cluster quickstart-\d+ --workers 2 --shards 2 --epochs 2 --data /tmp\n")

    def test_a_training_that_fails_gives_its_exit_code(self):
        self.put("tree/build/bin/train_classifier", FAILING)
        self.assertNotIn("THE STATUS", self.finish(self.start(), 1))

    def test_nodes_that_do_not_find_each_other_end_it(self):
        self.put("tree/build/bin/troupe", FAILING)
        self.finish(self.start(), 1)

    def test_a_build_that_fails_starts_nothing(self):
        self.put("path/ninja", FAILING)
        self.finish(self.start(), 1)
        self.assertEqual(self.pids(), [])

    def test_a_signal_in_mid_training_stops_everything(self):
        self.put("tree/build/bin/train_classifier", SLOW_TRAIN)
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            for name in ("nodes", "train"):
                (self.log / name).unlink(missing_ok=True)
            process = self.start()
            self.wait_for("train")
            os.kill(process.pid, number)
            self.finish(process, code)

    def test_Ctrl_C_reaches_the_whole_group_and_leaves_nothing(self):
        self.put("tree/build/bin/train_classifier", SLOW_TRAIN)
        process = self.start()
        self.wait_for("train")
        os.killpg(process.pid, signal.SIGINT)
        self.finish(process, 130)

    def test_nodes_that_do_not_end_are_ended_after_five_seconds(self):
        self.put("tree/build/bin/troupe-node", STUBBORN)
        began = time.monotonic()
        self.finish(self.start(), 0)
        self.assertGreater(time.monotonic() - began, 4)

    def test_wrong_arguments_are_usage_errors(self):
        for arguments in (["--epochs"], ["--epochs", "0"], ["--epochs", "x"], ["--data", "/nowhere"], ["--colour"]):
            self.finish(self.start(*arguments), 2)
        self.assertIn("usage:", self.finish(self.start("--help"), 0))


if __name__ == "__main__":
    unittest.main(verbosity=2)
