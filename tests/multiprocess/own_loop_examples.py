#!/usr/bin/env python3
"""Example programs with loops of their own, here and over nodes: own_loop_examples.py BIN_FOLDER"""

import glob
import json
import os
import random
import signal
import struct

import harness
import onnx_run

FAILED, USAGE, NOT_FOUND = 1, 2, 6


def classifier(batch="N", begin=0, weights=None):
    """Logits of three classes of eight numbers, by two layers as other programs export them: y = x W^T + b. Drawn by a seed."""
    draw = random.Random(5 + begin)
    weights = weights or {name: (dims, [draw.uniform(-0.4, 0.4) for _ in range(dims[0] * (dims[1] if len(dims) > 1 else 1))])
               for name, dims in (("body.weight", [16, 8]), ("body.bias", [16]), ("head.weight", [3, 16]), ("head.bias", [3]))}
    nodes = [onnx_run.node("Gemm", ["x", "body.weight", "body.bias"], ["h"], transB=1), onnx_run.node("Tanh", ["h"], ["a"]),
             onnx_run.node("Gemm", ["a", "head.weight", "head.bias"], ["y"], transB=1)]
    return onnx_run.model(nodes, [onnx_run.port("x", [batch, 8])], [onnx_run.port("y", [batch, 3])], weights=weights)


def tensors(path):
    """Of a safetensors file: bytes by name."""
    with open(path, "rb") as f:
        length = struct.unpack("<Q", f.read(8))[0]
        head, data = json.loads(f.read(length)), f.read()
    return {name: data[slice(*entry["data_offsets"])] for name, entry in head.items() if name != "__metadata__"}


class own_loop_examples(harness.cluster_test):
    def finish(self, program, *arguments, code=0):
        p = self.run_program(program, *arguments, "--json", seconds=2 * harness.HANG)
        self.assertEqual(p.code, code, f"{program} {' '.join(map(str, arguments))}\n{p.tail()}")
        return self.json_of(p) if code == 0 else p.err

    def write(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data)
        return self.path(name)

    # --- tune_onnx ----------------------------------------------------------------------------------------------------

    def test_the_last_layer_of_a_model_is_tuned_with_equal_bits_everywhere(self):
        model = self.write("m.onnx", classifier())
        before = self.path("before")
        self.finish("tune_onnx", model, "--learning-rate", 1e-30, "--epochs", 1, "--save", before, code=FAILED)  # nothing is learnt: no goal
        here, saved = self.finish("tune_onnx", model, "--save", self.path("here")), tensors(self.path("here"))
        self.assertTrue(here["good"] and here["are_frozen"], here)
        self.assertEqual((here["tuned"], here["frozen"]), (2, 2))
        changed = {name for name, bits in saved.items() if bits != tensors(before)[name]}
        self.assertEqual(changed, {"head.weight", "head.bias"})
        self.assertEqual(set(saved), changed | {"body.weight", "body.bias"})
        self.finish("tune_onnx", model, "--save-onnx", self.path("here.onnx"))
        self.start_nodes(3)
        for more in (("--threads", 2), ("--cluster", self.cluster), ("--cluster", self.cluster, "--on", "/job:worker/task:1")):
            self.assertEqual(self.finish("tune_onnx", model, "--save", self.path("there"), "--save-onnx", self.path("there.onnx"), *more), here, more)
            with open(self.path("here.onnx"), "rb") as a, open(self.path("there.onnx"), "rb") as b:
                self.assertEqual(a.read(), b.read(), more)
            self.assertEqual(tensors(self.path("there")), saved, more)

    def outputs_of(self, model, x, rows, is_ours=True):
        """Of onnx_run; and, of what was written by us, the same of onnxruntime, where Python has it and NumPy."""
        file = self.write("rows.npy", onnx_run.array([rows, len(x) // rows], x))
        p = self.run_program("onnx_run", model, "--input", file, "--output", self.path("out"), "--json")
        self.assertEqual(p.code, 0, p.tail())
        told = json.loads(p.out)["outputs"][0]
        ours = onnx_run.elements_of(told["file"])[1]
        if not is_ours:
            return ours
        try:
            import numpy
            import onnxruntime
        except ImportError as e:
            print(f"onnxruntime is not asked: {e}")
            return ours
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        theirs = session.run(None, {session.get_inputs()[0].name: numpy.load(file)})[0]
        self.assertEqual(list(theirs.shape), told["shape"])
        for a, b in zip(ours, theirs.reshape(-1).tolist()):
            self.assertAlmostEqual(a, b, delta=1e-4)
        return ours

    def test_a_model_that_three_nodes_tuned_is_a_file_for_others(self):
        draw = random.Random(7)
        x = [draw.uniform(-1, 1) for _ in range(5 * 8)]
        model = self.write("m.onnx", classifier())
        self.start_nodes(3)
        self.finish("tune_onnx", model, "--cluster", self.cluster, "--tune", "body,head", "--save", self.path("w"), "--save-onnx", self.path("tuned.onnx"))
        # The same layers with the weights that were saved beside it.
        weights = {name: ({"body.weight": [16, 8], "body.bias": [16], "head.weight": [3, 16], "head.bias": [3]}[name], struct.unpack(f"<{len(bits) // 4}f", bits))
                   for name, bits in tensors(self.path("w")).items()}
        wanted = self.outputs_of(self.write("same.onnx", classifier(weights=weights)), x, 5, is_ours=False)
        got = self.outputs_of(self.path("tuned.onnx"), x, 5)
        self.assertEqual(len(got), 15)
        for a, b in zip(got, wanted):
            self.assertAlmostEqual(a, b, delta=1e-5)
        self.assertNotEqual(got, self.outputs_of(model, x, 5, is_ours=False))
        self.assertRegex(self.finish("tune_onnx", model, "--save-onnx", self.path("no/such/folder.onnx"), code=NOT_FOUND), "tune_onnx: .*no/such/folder.onnx")

    def test_a_classifier_that_was_trained_is_a_file_for_others(self):
        p = self.run_program("train_classifier", "--steps", 3, "--save", self.path("w"), "--save-onnx", self.path("c.onnx"))
        self.assertEqual(p.code, 0, p.tail())
        draw = random.Random(3)
        row = [draw.uniform(0, 1) for _ in range(784)]
        got = self.outputs_of(self.path("c.onnx"), row * 2, 2)
        self.assertEqual((len(got), got[:10]), (20, got[10:]))
        weights = {name: struct.unpack(f"<{len(bits) // 4}f", bits) for name, bits in tensors(self.path("w")).items()}
        x = row
        for n in (1, 2, 3):
            w, b = weights[f"dense_{n}/weights"], weights[f"dense_{n}/bias"]
            x = [sum(x[i] * w[i * len(b) + k] for i in range(len(x))) + b[k] for k in range(len(b))]
            x = [max(v, 0) for v in x] if n < 3 else x
        for a, b in zip(got, x):
            self.assertAlmostEqual(a, b, delta=1e-3)
        p = self.run_program("train_classifier", "--save-onnx", self.path("c.onnx"), "--save-graph", self.path("g"))
        self.assertEqual((p.code, "nothing to write for --save-onnx" in p.err), (USAGE, True), p.tail())

    def test_a_tuning_goes_on_from_what_was_saved(self):
        model, other, saved = self.write("m.onnx", classifier()), self.write("other.onnx", classifier(begin=1)), self.path("saved")
        how = ("--no-shuffle", "--tune", "head.w,body")
        whole = self.finish("tune_onnx", model, *how, "--epochs", 4, "--save", self.path("whole"), "--losses", self.path("losses"))
        self.assertEqual((whole["tuned"], whole["frozen"]), (3, 1))
        with open(self.path("losses")) as f:
            self.assertEqual(len(f.readlines()), whole["steps"])
        self.finish("tune_onnx", model, *how, "--epochs", 2, "--save", saved, "--save-optimizer")
        # The file of the model only says what is computed: its weights are not those that it starts from.
        then = self.finish("tune_onnx", other, *how, "--epochs", 2, "--from", saved, "--save", self.path("then"))
        self.assertEqual(then["loss_after"], whole["loss_after"])
        self.assertEqual(tensors(self.path("then")), tensors(self.path("whole")))

    def test_a_model_whose_batch_is_fixed_and_targets_that_are_numbers(self):
        draw = random.Random(1)
        x = [draw.uniform(-1, 1) for _ in range(100 * 8)]
        y = [value for i in range(100) for value in (x[8 * i], x[8 * i + 1] * 2, 1)]
        files = ("--x", self.write("x.npy", onnx_run.array([100, 8], x)), "--y", self.write("y.npy", onnx_run.array([100, 3], y)))
        told = self.finish("tune_onnx", self.write("m.onnx", classifier(batch=10)), *files, "--epochs", 10, "--optimizer", "sgd", "--learning-rate", 0.05)
        self.assertEqual(told["steps"], 90)  # of 10 rows, and 10 rows are held back
        self.assertLess(told["loss_after"], told["loss_before"] / 2)
        classes = self.write("c.npy", onnx_run.array([100], [i % 3 for i in range(100)], kind="<i8"))
        self.finish("tune_onnx", self.write("n.onnx", classifier()), "--x", files[1], "--y", classes, "--hold-back", 0.5, "--epochs", 1, "--batch", 7)

    def test_what_is_wrong_with_a_tuning_is_told(self):
        model = self.write("m.onnx", classifier())
        x = self.write("x.npy", onnx_run.array([4, 7], range(28)))
        for code, arguments, text in (
                (USAGE, (), "model"),
                (NOT_FOUND, (self.path("none.onnx"),), "none.onnx"),
                (USAGE, (model, "--tune", "tail"), r"--tune tail: no weights begin so; \S+ has: body.weight, body.bias, head.weight, head.bias"),
                (USAGE, (model, "--x", x), "--y"),
                (USAGE, (model, "--x", x, "--y", x), r"input 'x': f32\[32\?, 7\] does not fit f32\[N, 8\]"),
                (USAGE, (model, "--from", x), "x.npy"),
                (USAGE, (model, "--on", "/job:moon"), "there is no task for device '/job:moon'"),
                (USAGE, (model, "--epochs", 0), "--epochs"),
                (USAGE, (self.write("fixed.onnx", classifier(batch=10)), "--rows", 15), "15 rows are too few for batches of 10")):
            self.assertRegex(self.finish("tune_onnx", *arguments, code=code), f"(?m)^tune_onnx: .*{text}", arguments)

    # --- evaluate_while_training --------------------------------------------------------------------------------------

    def test_who_asks_while_another_trains_reads_one_step(self):
        self.start_nodes(2)
        for where in ((), ("--cluster", self.cluster), ("--cluster", self.cluster, "--serving-on", "/job:client/task:0")):
            told = self.finish("evaluate_while_training", *where, "--steps", 500)
            self.assertEqual((told["good"], told["mixed"]), (True, 0), told)
            self.assertGreater(told["answered"], 0)
            self.assertGreaterEqual(told["accuracy"], 0.9)
            print(f"evaluated {told}", flush=True)
        self.finish("evaluate_while_training", "--steps", 1, "--goal", 1, code=FAILED)

    # --- share_one_update ---------------------------------------------------------------------------------------------

    def test_every_gradient_of_every_thread_is_applied_once(self):
        self.start_nodes(1)
        for where in ((), ("--cluster", self.cluster)):
            told = self.finish("share_one_update", *where, "--steps", 101, "--trainers", "1,3,8", "--width", 32, "--batch", 32)
            self.assertTrue(told["good"])
            self.assertEqual([(r["trainers"], r["update"], r["missed"]) for r in told["runs"]],
                             [(n, u, 0) for n in (1, 3, 8) for u in ("sync", "async")])
            print(f"shared {told}", flush=True)
        self.assertIn("--trainers", self.finish("share_one_update", "--trainers", 65, code=USAGE))

    # --- resume_elsewhere ---------------------------------------------------------------------------------------------

    def test_a_training_that_was_stopped_goes_on_in_another_loop(self):
        self.start_nodes(2)
        here = self.finish("resume_elsewhere")
        self.assertEqual((here["equal"], here["done"]), (True, 2000), here)
        there = self.finish("resume_elsewhere", "--cluster", self.cluster)
        self.assertEqual([there[k] for k in ("equal", "done", "weights_hash")], [here[k] for k in ("equal", "done", "weights_hash")], there)
        print(f"resumed here {here}, over nodes {there}", flush=True)

    def test_a_training_whose_program_was_killed_goes_on_in_another_program(self):
        steps, folder = ("--steps", 20_000), self.path("checkpoints")
        whole = self.finish("resume_elsewhere", "--part", "whole", *steps)
        self.start_nodes(2)
        for n, (first, then) in enumerate((((), ("--cluster", self.cluster)), (("--cluster", self.cluster), ()))):
            at = ("--checkpoint", f"{folder}-{n}", *steps)
            p = self.start("resume_elsewhere", "--part", "train", *at, *first)
            self.until("there is a checkpoint, or the training has ended",
                       lambda: glob.glob(f"{folder}-{n}/resumed/step-*/manifest.json") or not p.is_running())
            p.send(signal.SIGKILL)
            p.wait()
            told = self.finish("resume_elsewhere", "--part", "loop", *at, *then)
            print(f"killed, and gone on {told}", flush=True)
            self.assertGreater(told.pop("begun"), 0)
            whole.pop("begun", None)
            self.assertEqual(told, whole)

    def test_what_is_wrong_with_a_checkpoint_is_told(self):
        empty = self.path("empty")
        os.makedirs(os.path.join(empty, "resumed"))
        self.assertRegex(self.finish("resume_elsewhere", "--part", "loop", "--checkpoint", empty, code=NOT_FOUND),
                         "there is no whole checkpoint")
        self.assertIn("needs --checkpoint", self.finish("resume_elsewhere", "--part", "loop", code=USAGE))
        self.assertIn("--stop-after", self.finish("resume_elsewhere", "--stop-after", 5000, code=USAGE))


if __name__ == "__main__":
    harness.main()
