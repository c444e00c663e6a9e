#!/usr/bin/env python3
"""onnx_run as a user meets it: arrays in and out, cases, exit codes: onnx_run.py BIN_FOLDER

Models are written here, field by field; neither the standard's package nor NumPy is needed.
"""

import json
import os
import struct

import harness

FAILED, USAGE, NOT_FOUND = 1, 2, 6
F32, I64, U32 = 1, 7, 12


def varint(n):
    out = bytearray()
    n &= (1 << 64) - 1
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def number(field, n):
    return varint(field << 3) + varint(n)


def piece(field, content):
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


def port(name, dims, element=F32):
    """A dimension that is a text is open."""
    shape = b"".join(piece(1, piece(2, n) if isinstance(n, str) else number(1, n)) for n in dims)
    return piece(1, name) + piece(2, piece(1, number(1, element) + piece(2, shape)))


def tensor(dims, values, element=F32):
    code = {F32: "f", I64: "q", U32: "I"}[element]
    return b"".join(number(1, n) for n in dims) + number(2, element) + piece(9, struct.pack(f"<{len(values)}{code}", *values))


def node(op, inputs, outputs, **numbers):
    """`numbers`: attributes that are whole numbers."""
    attributes = b"".join(piece(5, piece(1, name) + number(3, n) + number(20, 2)) for name, n in numbers.items())
    return b"".join(piece(1, i) for i in inputs) + b"".join(piece(2, o) for o in outputs) + piece(3, op.lower()) + piece(4, op) + attributes


def model(nodes, inputs, outputs, opset=13, weights=None):
    """`weights`: {name: (dims, values)}, its initializers."""
    graph = b"".join(piece(1, n) for n in nodes) + piece(2, "g") + b"".join(piece(11, i) for i in inputs) + b"".join(piece(12, o) for o in outputs)
    graph += b"".join(piece(5, tensor(*w) + piece(8, name)) for name, w in (weights or {}).items())
    return number(1, 7) + piece(7, graph) + piece(8, number(2, opset))


def array(dims, values, kind="<f4", order="False"):
    shape = "(" + "".join(f"{n}, " for n in dims) + ")"
    header = f"{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    code = {"<f4": "f", "<i8": "q"}[kind]
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(values)}{code}", *values)


def elements_of(path):
    with open(path, "rb") as f:
        data = f.read()
    begin = 10 + struct.unpack("<H", data[8:10])[0]
    return data[10:begin].decode(), struct.unpack(f"<{(len(data) - begin) // 4}f", data[begin:])


DIFFERENCE = model([node("Sub", ["a", "b"], ["d"]), node("Relu", ["d"], ["y/0"])], [port("a", [2]), port("b", [2])], [port("y/0", [2]), port("d", [2])])


class onnx_run(harness.cluster_test):
    def write(self, name, data):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def onnx(self, *arguments, code=0):
        p = self.run_program("onnx_run", *arguments)
        self.assertEqual(p.code, code, f"{' '.join(map(str, arguments))}\n{p.tail()}")
        return p

    def refuses(self, code, arguments, *parts):
        p = self.onnx(*arguments, code=code)
        self.assertEqual(len(p.lines["err"]), 1, p.tail())
        self.assertTrue(p.err.startswith("onnx_run: "), p.tail())
        for part in parts:
            self.assertIn(str(part), p.err)
        self.assertEqual(p.out, "", p.tail())

    def case(self, name, wanted, nodes=None, element=F32):
        """A folder in the layout of the standard's tests: y = relu(x)."""
        self.write(f"cases/{name}/model.onnx", model(nodes or [node("Relu", ["x"], ["y"])], [port("x", [2], element)], [port("y", [2], element)]))
        self.write(f"cases/{name}/test_data_set_0/input_0.pb", tensor([2], [-1, 2] if element == F32 else [1, 2], element))
        self.write(f"cases/{name}/test_data_set_0/output_0.pb", tensor([2], wanted, element))

    # --- running ------------------------------------------------------------------------------------------------------

    def test_arrays_in_order_and_by_name(self):
        m = self.write("m.onnx", DIFFERENCE)
        a, b = self.write("a.npy", array([2], [5, 1])), self.write("b.npy", array([2], [2, 4]))
        p = self.onnx(m, "--input", a, "--input", b)
        self.assertEqual(p.out, "y/0 f32[2]: 3, 0\nd f32[2]: 3, -3")
        self.assertEqual(self.onnx(m, "--input", a, b).out, p.out)
        self.assertEqual(self.onnx(m, "--input", f"b={a}", f"a={b}").out, "y/0 f32[2]: 0, 3\nd f32[2]: -3, 3")
        self.assertEqual(self.onnx(m, "--input", f"b={b}", a).out, p.out)

    def test_a_model_is_written_as_it_was_built(self):
        m = self.write("m.onnx", model([node("Shape", ["x"], ["s"]), node("Reshape", ["x", "s"], ["r"]), node("Relu", ["r"], ["y"])],
                                       [port("x", ["N", 2])], [port("y", ["N", 2])]))
        x, saved = self.write("x.npy", array([2, 2], [5, -1, -2, 7])), self.path("saved.onnx")
        out = self.onnx(m, "--input", x, "--save-onnx", saved).out
        self.assertEqual(out, "y f32[2, 2]: 5, 0, 0, 7")
        self.assertEqual(self.onnx(saved, "--input", f"x={x}").out, out)
        self.refuses(USAGE, [saved, "--input", self.write("z.npy", array([1, 2], [5, 1]))], "input 'x'", "does not fit")
        self.refuses(NOT_FOUND, [m, "--input", x, "--save-onnx", self.path("none/m.onnx")], "--save-onnx", "none/m.onnx")
        self.refuses(USAGE, ["--check", self.path("."), "--save-onnx", saved], "--save-onnx")

    def test_further_steps_are_timed(self):
        m = self.write("m.onnx", DIFFERENCE)
        given = ["--input", self.write("a.npy", array([2], [5, 1])), self.write("b.npy", array([2], [2, 4])), "--repeat", "5"]
        told = json.loads(self.onnx(m, *given, "--json").out)
        self.assertEqual([o["values"] for o in told["outputs"]], [[3, 0], [3, -3]])
        self.assertEqual(len(told["step_ms"]), 5)
        self.assertTrue(all(ms > 0 for ms in told["step_ms"]), told)
        self.assertRegex(self.onnx(m, *given).lines["out"][2], r"^5 steps: median [0-9.]+ ms, from [0-9.]+ to [0-9.]+ ms$")
        self.refuses(USAGE, [m, *given[:-1], "0"], "--repeat")
        self.refuses(USAGE, ["--check", self.path("."), "--repeat", "5"], "--repeat")

    def test_outputs_as_files_and_json(self):
        m = self.write("m.onnx", DIFFERENCE)
        a, b = self.write("a.npy", array([2], [5, 1])), self.write("b.npy", array([2], [2, 4]))
        out = self.path("new/folder")
        p = self.onnx(m, "--input", a, b, "--output", out, "--json")
        self.assertEqual(sorted(os.listdir(out)), ["d.npy", "y_0.npy"])
        header, values = elements_of(os.path.join(out, "d.npy"))
        self.assertEqual(values, (3.0, -3.0))
        self.assertIn("'shape': (2,)", header)
        self.assertEqual(len(p.lines["out"]), 1)
        first, second = json.loads(p.out)["outputs"]
        self.assertEqual((first["name"], first["dtype"], first["shape"], first["values"]), ("y/0", "f32", [2], [3, 0]))
        self.assertEqual(second["file"], os.path.join(out, "d.npy"))
        # What was written can be read.
        self.assertEqual(self.onnx(m, "--input", os.path.join(out, "d.npy"), b).lines["out"][1], "d f32[2]: 1, -7")

    def test_names_of_outputs_do_not_reach_the_terminal_as_they_are(self):
        name = "a\x1b[31m\n\u009bb\x7f/\u00e4"
        m = self.write("m.onnx", model([node("Relu", ["x"], [name])], [port("x", [2])], [port(name, [2])]))
        x, out = self.write("x.npy", array([2], [5, -1])), self.path("out")
        self.assertEqual(self.onnx(m, "--input", x, "--output", out).out, "a?[31m??b?/\u00e4 f32[2]: 5, 0")
        self.assertEqual(os.listdir(out), ["a_[31m__b__\u00e4.npy"])
        p = self.onnx(m, "--input", x, "--json")
        self.assertTrue(p.out.isascii() and p.out.isprintable(), p.tail())
        self.assertEqual(json.loads(p.out)["outputs"][0]["name"], name)
        hostile = model([node("Relu", [name], ["y"])], [port(name, [2])], [port("y", [2])])
        self.refuses(USAGE, [self.write("h.onnx", hostile)], "input 'a?[31m??b?/\u00e4' is missing; the model's are: a?[31m??b?/\u00e4")

    def test_a_step_whose_index_is_outside_fails(self):
        at = tensor([1, 2], [0, 5], I64) + piece(8, "at")
        graph = piece(1, node("GatherND", ["x", "at"], ["y"])) + piece(2, "g") + piece(5, at) + piece(11, port("x", [2, 3])) + piece(12, port("y", [1]))
        m = self.write("m.onnx", number(1, 7) + piece(7, graph) + piece(8, number(2, 13)))
        self.refuses(FAILED, [m, "--input", self.write("x.npy", array([2, 3], range(6)))], "gathernd", "index 0 is 6")

    def test_memory_that_is_not_there_is_one_line(self):
        limited = ["bash", "-c", f'ulimit -v 8000000; exec {os.path.join(harness.BIN, "onnx_run")} "$@"', "onnx_run"]

        def run(*arguments):
            p = harness.program([*limited, *map(str, arguments)], self.environment)
            self.programs.append(p)
            p.code = p.wait()
            return p

        if run("--version").code != 0:
            self.skipTest("this build does not run within 8 GB of addresses (sanitizers)")
        # Files of holes, 16 GiB: data beside a model, and an input.
        with open(self.path("holes"), "wb") as f:
            f.truncate(1 << 34)
        weight = number(1, 1 << 32) + number(2, F32) + piece(8, "w") + piece(13, piece(1, "location") + piece(2, "holes")) + number(14, 1)
        graph = piece(1, node("Relu", ["w"], ["y"])) + piece(2, "g") + piece(5, weight) + piece(12, port("y", [1 << 32]))
        m = self.write("m.onnx", number(1, 7) + piece(7, graph) + piece(8, number(2, 13)))
        p = run(m)
        self.assertIn(p.code, (FAILED, USAGE), p.tail())
        self.assertEqual(p.err, f"onnx_run: {m}: initializer 'w': there is no memory for f32[4294967296], {1 << 34} bytes")
        relu = self.write("r.onnx", model([node("Relu", ["x"], ["y"])], [port("x", [1 << 32])], [port("y", [1 << 32])]))
        big = self.write("x.npy", array([1 << 32], []))
        os.truncate(big, os.path.getsize(big) + (1 << 34))
        p = run(relu, "--input", big)
        self.assertEqual((p.code, p.err), (FAILED, f"onnx_run: {big}: there is no memory for its array"), p.tail())

    def test_mistakes_are_one_line(self):
        m = self.write("m.onnx", DIFFERENCE)
        a = self.write("a.npy", array([2], [5, 1]))
        self.refuses(USAGE, [], "--check")
        self.refuses(USAGE, [m, "--check", self.path(".")], "--help")
        self.refuses(USAGE, [m, "--input", a], "input 'b' is missing", "a, b")
        self.refuses(USAGE, [m, "--input", a, a, a], "one too many")
        self.refuses(USAGE, [m, "--input", f"a={a}", f"a={a}"], "given twice")
        self.refuses(NOT_FOUND, [m, "--input", f"c={a}", a], "there is no input 'c'", "a, b")
        self.refuses(NOT_FOUND, [m, "--input", a, self.path("none.npy")], "none.npy")
        self.refuses(NOT_FOUND, [self.path("none.onnx")], "none.onnx")
        self.refuses(NOT_FOUND, ["--check", self.path("none")], "none: no such folder")
        os.mkdir(self.path("empty"))
        self.refuses(NOT_FOUND, ["--check", self.path("empty")], "no folder with a model.onnx")
        self.refuses(USAGE, [m, "--input", a, self.write("u.npy", array([2], [1, 2]).replace(b"<f4", b"<u4"))], "u.npy", "uint32")
        # Read in either order of its elements: it is its shape that does not fit.
        self.refuses(USAGE, [m, "--input", a, self.write("f.npy", array([1, 2], [1, 2], order="True"))], "input 'b'", "f32[1, 2] does not fit f32[2]")
        self.refuses(USAGE, [m, "--input", a, self.write("l.npy", array([3], [1, 2, 3]))], "input 'b'", "f32[3] does not fit f32[2]")
        self.refuses(USAGE, [m, "--input", a, self.write("i.npy", array([2], [1, 2], kind="<i8"))], "input 'b'", "i64[2] does not fit f32[2]")
        self.refuses(USAGE, [m, "--input", a, a, "--output", a], "not a folder")
        for cut in (0, 1, len(DIFFERENCE) // 2, len(DIFFERENCE) - 1):
            self.refuses(USAGE, [self.write("cut.onnx", DIFFERENCE[:cut]), "--input", a, a], "cut.onnx")
        odd = model([node("Det", ["a"], ["y"])], [port("a", [2])], [port("y", [2])])
        self.refuses(USAGE, [self.write("odd.onnx", odd), "--input", a], "odd.onnx", "node 0 'det' (Det)", "not supported")

    def test_help_and_version(self):
        self.assertIn("--check", self.onnx("--help").out)
        self.assertRegex(self.onnx("--version").out, r"^onnx_run \d+\.\d+\.\d+")

    # --- cases --------------------------------------------------------------------------------------------------------

    def test_cases_that_pass_fail_and_are_not_supported(self):
        self.case("deep/good", [0, 2])
        self.case("wrong", [0, 3])
        self.case("near", [0, 2.001])
        self.case("alien", [0, 2], nodes=[node("Relu", ["x"], ["r"]), node("Det", ["r"], ["y"])])
        self.case("unsigned", [1, 2], element=U32)
        p = self.onnx("--check", self.path("cases"), "--json", code=FAILED)
        self.assertEqual(len(p.lines["out"]), 1)
        report = json.loads(p.out)
        self.assertEqual((report["passed"], report["failed"], report["unsupported"]), (2, 1, 2))
        self.assertEqual(report["unsupported_ops"], {"Det": 1, "Relu": 1})
        by_name = {c["name"]: c for c in report["cases"]}
        self.assertEqual({n: c["result"] for n, c in by_name.items()},
                         {"good": "passed", "near": "passed", "wrong": "failed", "alien": "unsupported", "unsigned": "unsupported"})
        self.assertEqual(by_name["good"]["error"], 0)
        self.assertGreater(by_name["wrong"]["error"], 300)
        self.assertIn("output 'y'", by_name["wrong"]["why"])
        self.assertIn("uint32", by_name["unsigned"]["why"])
        text = self.onnx("--check", self.path("cases/deep"), self.path("cases/alien"))
        self.assertEqual(text.lines["out"][0], "pass         good")
        self.assertTrue(text.lines["out"][1].startswith("unsupported  alien: Det: "), text.out)
        self.assertEqual(text.lines["out"][2], "1 passed, 0 failed, 1 unsupported (Det 1)")

    # --- devices ------------------------------------------------------------------------------------------------------

    def test_a_model_runs_on_a_device_with_the_same_bits(self):
        m = self.write("m.onnx", DIFFERENCE)
        a, b = self.write("a.npy", array([2], [5, 1])), self.write("b.npy", array([2], [2, 4]))
        here = self.onnx(m, "--input", a, b).out
        self.assertEqual(self.onnx(m, "--input", a, b, "--device", "gpu:1", "--gpus", "host:2", "--gpu-memory", "64MiB").out, here)
        self.refuses(FAILED, [m, "--input", a, b, "--device", "gpu:1", "--gpus", "host:1"], "there is no gpu:1 for", "has only gpu:0")
        self.refuses(USAGE, [m, "--input", a, b, "--device", "gpu:many"], "--device", "'many' is no number")
        self.refuses(USAGE, [m, "--input", a, b, "--device", ""], "--device", "cpu:N or gpu:N")
        self.refuses(USAGE, [m, "--input", a, b, "--gpus", "some"], "--gpus 'some'")
        self.refuses(USAGE, [m, "--input", a, b, "--gpu-memory", "much"], "--gpu-memory")
        self.refuses(USAGE, [m, "--input", a, b, "--precision", "f8"], "--precision")

    def test_products_compute_in_the_precision_that_is_asked_for(self):
        m = self.write("m.onnx", model([node("MatMul", ["a", "b"], ["y"])], [port("a", [1, 2]), port("b", [2, 1])], [port("y", [1, 1])]))
        # 1 + 2^-9 is 1 in bf16 and itself in f16, 1 + 2^-12 is 1 in both.
        a, b = self.write("a.npy", array([1, 2], [1 + 2 ** -9, 1 + 2 ** -12])), self.write("b.npy", array([2, 1], [256, 2]))
        for device in ([], ["--device", "gpu:0", "--gpus", "host:1"]):
            said = [json.loads(self.onnx(m, "--input", a, b, "--json", "--precision", p, *device).out)["outputs"][0]["values"][0] for p in ("f32", "f16", "bf16")]
            self.assertEqual(said, [256.5 + 2 + 2 ** -11, 258.5, 258], device)

    def test_cases_on_a_device_are_counted(self):
        self.case("good", [0, 2])
        self.case("wrong", [0, 3])
        self.case("alien", [0, 2], nodes=[node("Relu", ["x"], ["r"]), node("Det", ["r"], ["y"])])
        device = ["--device", "gpu:0", "--gpus", "host:1"]
        report = json.loads(self.onnx("--check", self.path("cases"), "--json", *device, code=FAILED).out)
        self.assertEqual((report["passed"], report["failed"], report["unsupported"]), (1, 1, 1))
        self.assertEqual((report["device"], report["cases_on_device"], report["ops_on_device"], report["ops_on_host"], report["host_op_types"]), ("gpu:0", 1, 1, 0, {}))
        self.assertEqual({c["name"]: (c["ops_on_device"], c["ops_on_host"]) for c in report["cases"] if c["result"] == "passed"}, {"good": (1, 0)})
        text = self.onnx("--check", self.path("cases/good"), *device)
        self.assertEqual(text.lines["out"][-1], "of those that passed, 1 ran ops on gpu:0: 1 ops there, 0 on the host")
        self.assertNotIn("ops_on_device", self.onnx("--check", self.path("cases/good"), "--json", "--device", "cpu:0").out)
        # A device that is not there is said once.
        self.refuses(FAILED, ["--check", self.path("cases"), "--device", "gpu:3", "--gpus", "host:1"], "there is no gpu:3", "has only gpu:0")

    def test_a_case_whose_files_are_damaged_fails_alone(self):
        self.case("good", [0, 2])
        for name, data in (("model", {"model.onnx": b"\xff" * 40}), ("input", {"test_data_set_0/input_0.pb": b"\x0a"}),
                           ("output", {"test_data_set_0/output_0.pb": tensor([3], [0, 2])})):
            self.case(name, [0, 2])
            for path, content in data.items():
                self.write(f"cases/{name}/{path}", content)
        self.write("cases/lonely/model.onnx", DIFFERENCE)
        self.case("nothing wanted", [0, 2])
        os.remove(self.path("cases/nothing wanted/test_data_set_0/output_0.pb"))
        report = json.loads(self.onnx("--check", self.path("cases"), "--json", code=FAILED).out)
        self.assertEqual({c["name"]: c["result"] for c in report["cases"]},
                         {"good": "passed", "model": "failed", "input": "failed", "output": "failed", "lonely": "failed", "nothing wanted": "failed"})


if __name__ == "__main__":
    harness.main()
