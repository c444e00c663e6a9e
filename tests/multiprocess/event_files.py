#!/usr/bin/env python3
"""What --tensorboard and --record write, read from the formats alone, and by TensorBoard where Python has it: event_files.py BIN_FOLDER"""

import csv
import io
import json
import math
import os
import pathlib
import signal
import struct
import unittest

import harness

FAILED, USAGE = 1, 2


def divided(r):
    for _ in range(8):
        r = (r >> 1) ^ (0x82F63B78 if r & 1 else 0)
    return r


TABLE = [divided(byte) for byte in range(256)]


def crc32c(data):
    r = 0xFFFFFFFF
    for byte in data:
        r = (r >> 8) ^ TABLE[(r ^ byte) & 0xFF]
    return r ^ 0xFFFFFFFF


def records(path):
    """The data of whole records; what follows them is a part of one, or an error."""
    with open(path, "rb") as f:
        data = f.read()
    found = []
    while len(data) >= 12:
        size, *checksums = struct.unpack("<QI", data[:12])
        if len(data) < size + 16:
            break
        checksums += struct.unpack("<I", data[12 + size:16 + size])
        for part, masked in zip((data[:8], data[12:12 + size]), checksums):
            c = crc32c(part)
            assert masked == ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF, f"{path}: a checksum differs"
        found.append(data[12:12 + size])
        data = data[16 + size:]
    return found


def fields(data):
    """Of a message of protocol buffers: number -> the last value."""
    at, found = 0, {}

    def varint():
        nonlocal at
        n = shift = 0
        while True:
            n |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 0x80:
                return n

    while at < len(data):
        key = varint()
        size = {0: 0, 1: 8, 5: 4}.get(key & 7)
        if size == 0:
            found[key >> 3] = varint()
            continue
        size = varint() if size is None else size
        found[key >> 3] = data[at:at + size]
        at += size
    return found


def events(folder):
    """Of all files, in the order of their names: (tag, step, number or text); tags "" (a version) and "start"."""
    found = []
    for name in sorted(os.listdir(folder)):
        for e in map(fields, records(os.path.join(folder, name))):
            step = e.get(2, 0)
            if 3 in e:
                found.append(("", step, e[3].decode()))
            elif 7 in e:
                found.append(("start", step, fields(e[7])[1]))
            else:
                value = fields(fields(e[5])[1])
                shown = struct.unpack("<f", value[2])[0] if 2 in value else fields(value[8])[8].decode()
                found.append((value[1].decode(), step, shown))
    return found


def of(tag, found):
    return [(step, x) for t, step, x in found if t == tag]


class event_files(harness.cluster_test):
    def setUp(self):
        super().setUp()
        self.data, self.run_folder, self.losses = self.make_data(), self.path("runs/1"), self.path("losses")
        self.flags = ["--data", self.data, "--tensorboard", self.run_folder, "--json"]

    def are_those_of_the_losses(self, written):
        """Each step once, in order, with what stands in the file of --losses."""
        with open(self.losses) as f:
            wanted = [(int(step), float(loss)) for step, loss in (line.split(",") for line in f)]
        self.assertEqual([step for step, _ in wanted], list(range(len(wanted))))
        self.assertEqual([step for step, _ in written], list(range(len(wanted))))
        for (_, x), (_, loss) in zip(written, wanted):
            self.assertTrue(math.isclose(x, loss, rel_tol=1e-6), f"{x} and {loss}")

    def test_every_loss_and_the_result_are_there(self):
        for how in ([], ["--workers", 2, "--update", "async"]):
            folder = self.path(f"run{len(how)}")
            p = self.train_alone("--data", self.data, "--epochs", 2, "--losses", self.losses, "--tensorboard", folder, "--json", *how)
            found = events(folder)
            self.assertEqual(found[0], ("", 0, "brain.Event:2"))
            self.assertEqual(found[1], ("start", 0, 1))
            written = of("loss", found)
            self.are_those_of_the_losses(written)
            self.assertTrue(all(x > 0 for _, x in of("steps_per_second", found)) and of("steps_per_second", found))
            (step, accuracy), = of("result/test_accuracy", found)
            self.assertEqual(step, written[-1][0])
            self.assertAlmostEqual(accuracy, self.json_of(p)["test_accuracy"], places=6)

    def test_a_training_that_goes_on_makes_what_it_does_again_void(self):
        saved = ["--checkpoint", self.path("checkpoints"), "--checkpoint-every", 20]
        p = self.start("train_classifier", *self.flags, *saved, "--epochs", harness.ENDLESS)
        self.until("the first file has losses", lambda: os.path.exists(self.run_folder) and of("loss", events(self.run_folder)))
        self.until("there is a checkpoint", lambda: os.path.exists(self.path("checkpoints")) and any(
            os.path.exists(os.path.join(folder, "manifest.json")) for folder, _, _ in os.walk(self.path("checkpoints"))))
        p.send(signal.SIGKILL)
        p.wait()
        before = of("loss", events(self.run_folder))
        again = self.start("train_classifier", *self.flags, *saved, "--epochs", harness.ENDLESS, "--resume")
        self.until("the second file has losses", lambda: len(of("start", events(self.run_folder))) == 2)
        again.send(signal.SIGINT)
        again.wait()
        found = events(self.run_folder)
        self.assertEqual(found[0], ("", 0, "brain.Event:2"))
        (_, _), (step, _) = of("start", found)
        self.assertGreater(step, 0, "it goes on from a checkpoint")
        second = of("loss", found)[len(before):]
        self.assertEqual([s for s, _ in second], list(range(step, step + len(second))))
        self.assertTrue(of("end", found), "that it was interrupted")

    def rows(self, path):
        """Of a record: what stands on its whole lines, numbers as texts."""
        with open(path, encoding="utf-8") as f:
            text = f.read()
        text = text[:text.rfind("\n") + 1]
        if path.endswith(".csv"):
            return list(csv.DictReader(io.StringIO(text)))
        return [{key: str(x) for key, x in json.loads(line).items()} for line in text.splitlines()]

    def losses_of(self, path):
        return [(int(row["step"]), float(row["loss"])) for row in self.rows(path) if row.get("loss")]

    def test_a_record_has_every_step_and_the_result(self):
        for name, how in (("r.jsonl", []), ("r.csv", ["--workers", 2, "--update", "async"])):
            path = self.path(name)
            p = self.train_alone("--data", self.data, "--epochs", 2, "--losses", self.losses, "--record", path, "--json", "--learning-rate", "0.05",
                                 "--schedule", "linear", *how)
            self.are_those_of_the_losses(self.losses_of(path))
            rows = self.rows(path)
            steps = [row for row in rows if row.get("loss")]
            self.assertEqual([float(row["learning_rate"]) for row in steps[:1]], [0.05])
            self.assertLess(float(steps[-1]["learning_rate"]), 0.01)
            rates = [float(row["samples_per_second"]) for row in steps if row.get("samples_per_second")]
            self.assertTrue(all(rate > 0 for rate in rates), rates)
            # Losses come in bursts: a part of a second has no rate.
            begun = [row for row in steps if row["time"][:19] == steps[0]["time"][:19]]
            self.assertEqual([row.get("samples_per_second") for row in begun if row.get("samples_per_second")], [])
            self.assertEqual({row["recoveries"] for row in rows}, {"0"})
            self.assertRegex(rows[0]["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertEqual(rows[-1]["step"], steps[-1]["step"])
            found = rows[-1]["value"] if name.endswith(".csv") else rows[-1]["result/test_accuracy"]
            self.assertAlmostEqual(float(found), self.json_of(p)["test_accuracy"], places=6)

    def test_a_record_goes_on_without_doubled_steps(self):
        saved = ["--checkpoint", self.path("checkpoints"), "--checkpoint-every", 20]
        path = self.path("r.csv")
        how = ["--data", self.data, "--record", path, *saved, "--epochs", harness.ENDLESS]
        p = self.start("train_classifier", *how)
        self.until("the record has losses", lambda: os.path.exists(path) and len(self.losses_of(path)) > 30)
        self.until("there is a checkpoint", lambda: os.path.exists(self.path("checkpoints")) and any(
            os.path.exists(os.path.join(folder, "manifest.json")) for folder, _, _ in os.walk(self.path("checkpoints"))))
        p.send(signal.SIGKILL)
        p.wait()
        before = len(self.losses_of(path))
        with open(path, "a", encoding="utf-8") as f:
            f.write("99")  # as a crash in the middle of a line leaves it
        again = self.start("train_classifier", *how, "--resume")
        self.until("more is recorded", lambda: len(self.losses_of(path)) > before + 30)
        again.send(signal.SIGINT)
        again.wait()
        steps = [step for step, _ in self.losses_of(path)]
        self.assertEqual(steps, list(range(len(steps))))

    def test_a_record_is_left_by_a_resumed_training_that_has_ended(self):
        for name, more in (("e.jsonl", []), ("e.csv", []), ("async.csv", ["--update", "async", "--workers", 2])):
            path = self.path(name)
            how = ["--data", self.data, "--record", path, "--steps", 60, "--checkpoint", self.path("ended" + name), *more]
            self.train_alone(*how)
            before = self.rows(path)
            losses = len(self.losses_of(path))
            self.assertEqual(losses, 120 if more else 60)
            self.assertEqual(len(before), losses + 1)
            for _ in range(2):
                self.train_alone(*how, "--resume")
                after = self.rows(path)
                self.assertEqual(after[:losses], before[:losses])
                self.assertEqual([row["step"] for row in after[losses:]], [before[-1]["step"]])

    def test_a_record_with_a_hole_is_told_of(self):
        path = self.path("h.jsonl")
        how = ["--data", self.data, "--record", path, "--checkpoint", self.path("holed")]
        self.train_alone(*how, "--steps", 60)
        lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
        pathlib.Path(path).write_text("".join(lines[:50]), encoding="utf-8")
        p = self.train_alone(*how, "--steps", 70, "--resume")
        self.assertIn("h.jsonl lacks steps 50 to 59", p.err)
        self.assertEqual([step for step, _ in self.losses_of(path)], [*range(50), *range(60, 70)])

    def test_two_trainings_do_not_write_one_record(self):
        path = self.path("two.csv")
        how = ["--data", self.data, "--record", path, "--epochs", harness.ENDLESS]
        first = self.start("train_classifier", *how)
        self.until("the record has losses", lambda: os.path.exists(path) and len(self.losses_of(path)) > 3)
        p = self.run_program("train_classifier", *how)
        self.assertEqual(p.code, USAGE, p.tail())
        self.assertIn("is being written by another training", p.err)
        first.send(signal.SIGINT)
        first.wait()
        steps = [step for step, _ in self.losses_of(path)]
        self.assertEqual(steps, list(range(len(steps))))

    def test_recoveries_are_recorded(self):
        self.start_nodes(3)
        path = self.path("r.jsonl")
        training = self.start_training("--data", self.data, "--record", path, "--workers", 2, "--epochs", harness.ENDLESS, "--on-failure", "resume",
                                       "--name", "job", "--losses", self.losses)
        self.until_step(training, "job", 40)
        self.node_of("job", "worker/0/").send(signal.SIGKILL)
        self.goes_on_for(training, "job")
        self.end_in_good_order(training, "job")
        rows = self.rows(path)
        self.assertEqual(rows[0]["recoveries"], "0")
        self.assertGreaterEqual(int(rows[-1]["recoveries"]), 1)
        self.are_those_of_the_losses(self.losses_of(path))

    def test_a_record_may_be_an_event_file(self):
        p = self.train_alone("--data", self.data, "--epochs", 2, "--losses", self.losses, "--record", f"tensorboard:{self.run_folder}", "--json")
        found = events(self.run_folder)
        self.are_those_of_the_losses(of("loss", found))
        self.assertEqual(of("learning_rate", found)[0][1] > 0, True)
        self.assertEqual(of("samples_per_second", found)[0][1] > 0, True)
        self.assertAlmostEqual(of("result/test_accuracy", found)[0][1], self.json_of(p)["test_accuracy"], places=6)

    def test_a_record_that_cannot_be_is_refused_before_the_training(self):
        other = self.path("other.csv")
        with open(other, "w", encoding="utf-8") as f:
            f.write("name,age\n")
        for flags, says, code in ((["--record", ""], "--record: the name of the file is empty", USAGE),
                                  (["--record", "r.txt"], "'r.txt' is neither FILE.jsonl nor FILE.csv nor tensorboard:DIR", USAGE),
                                  (["--record", "tensorboard:"], "--record tensorboard:DIR: the name of the folder is empty", USAGE),
                                  (["--record", "tensorboard:a", "--tensorboard", "b"], "give one", USAGE),
                                  (["--record", other], "is there, and is no record of a training", USAGE),
                                  (["--record", self.path("no/r.csv")], "give a file in a folder that is there", 6),
                                  (["--record", "r.csv", "--losses", "r.csv"], "name the same file", USAGE),
                                  (["--record", "r.csv", "--save-graph", self.path("graph")], "nothing to write for --record", USAGE)):
            p = self.run_program("train_classifier", "--data", self.data, "--epochs", 1_000_000, *flags)
            self.assertEqual(p.code, code, p.tail())
            self.assertEqual(len(p.lines["err"]), 1, p.tail())
            self.assertIn(says, p.err)

    def test_recoveries_are_texts(self):
        self.start_nodes(3)
        training = self.start_training(*self.flags, "--workers", 2, "--epochs", harness.ENDLESS, "--on-failure", "resume", "--name", "job", "--losses", self.losses)
        self.until_step(training, "job", 40)
        victim = self.node_of("job", "worker/0/")
        victim.send(signal.SIGKILL)
        self.goes_on_for(training, "job")
        self.end_in_good_order(training, "job")
        found = events(self.run_folder)
        told = of("recoveries", found)
        self.assertGreaterEqual(len(told), 2, training.tail())
        self.assertIn(f"pid {victim.pid}", told[0][1])
        self.assertIn("goes on from step", told[-1][1])
        self.assertEqual(len({step for step, _ in told}), len(told), "a step for each")
        self.are_those_of_the_losses(of("loss", found))

    def test_a_full_disk_ends_no_training(self):
        command = " ".join(map(str, [os.path.join(harness.BIN, "train_classifier"), *self.flags, "--epochs", 40]))
        p = harness.program(["bash", "-c", f"trap '' XFSZ; ulimit -f 4; exec {command}"], self.environment)
        self.programs.append(p)
        self.assertEqual(p.wait(), FAILED, p.tail())
        self.assertGreater(self.json_of(p)["test_accuracy"], 0.2, p.tail())
        self.assertIn("--tensorboard: cannot write", p.lines["err"][-1], p.tail())
        self.assertEqual(len([line for line in p.lines["err"] if "training goes on" in line]), 1, p.tail())
        self.assertGreater(len(of("loss", events(self.run_folder))), 50, "what was written is read")

    def test_a_folder_that_cannot_be_is_refused_before_the_training(self):
        taken = self.path("taken")
        with open(taken, "w") as f:
            f.write("x")
        for flags, says in ((["--tensorboard", taken], "taken: Not a directory"), (["--tensorboard", ""], "--tensorboard: the name of the folder is empty"),
                            (["--tensorboard", taken, "--save-graph", self.path("graph")], "nothing to write for --tensorboard")):
            p = self.run_program("train_classifier", "--data", self.data, "--epochs", 1_000_000, *flags)
            self.assertEqual(p.code, USAGE, p.tail())
            self.assertEqual(len(p.lines["err"]), 1, p.tail())
            self.assertIn(says, p.err)
        self.assertFalse(os.path.exists(self.run_folder))

    def test_tensorboard_reads_them(self):
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            raise unittest.SkipTest("this Python has no tensorboard (pip install tensorboard), so it cannot read what was written") from None
        self.train_alone(*self.flags, "--epochs", 2)
        reader = EventAccumulator(self.run_folder, size_guidance={"scalars": 0})
        reader.Reload()
        self.assertEqual([(e.step, e.value) for e in reader.Scalars("loss")], of("loss", events(self.run_folder)))
        self.assertEqual(len(reader.Scalars("result/test_accuracy")), 1)


if __name__ == "__main__":
    harness.main()
