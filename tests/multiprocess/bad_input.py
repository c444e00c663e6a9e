#!/usr/bin/env python3
"""A user's mistakes and hostile bytes: one clear line, the right exit code, no harm to running jobs: bad_input.py BIN_FOLDER"""

import contextlib
import glob
import gzip
import json
import os
import random
import shutil
import signal
import socket
import struct
import time

import harness

FAILED, USAGE, UNREACHABLE, DENIED, NOT_FOUND = 1, 2, 3, 5, 6


class bad_input(harness.cluster_test):
    def refuses(self, codes, *parts, program, arguments):
        """It ends with that code (one of those) and says one line on stderr that has all the parts."""
        p = self.run_program(program, *arguments)
        self.assertIn(p.code, codes if isinstance(codes, tuple) else (codes,), f"{' '.join(map(str, arguments))}\n{p.tail()}")
        self.assertEqual(len(p.lines["err"]), 1, p.tail())
        self.assertTrue(p.err.startswith(program + ": "), p.tail())
        for part in parts:
            self.assertIn(str(part), p.err)
        self.assertEqual(p.out, "", p.tail())

    def classifier_refuses(self, code, arguments, *parts):
        self.refuses(code, *parts, program="train_classifier", arguments=arguments)

    def node_refuses(self, code, arguments, *parts):
        self.refuses(code, *parts, program="troupe-node", arguments=arguments)

    def test_nodes_that_read_other_data(self):
        """The second node reads files that were changed after the first one had read them."""
        folder = self.make_data(300, 100)
        self.start_nodes(1)
        first = self.start_training("--data", folder, "--batch", 50, "--epochs", 100_000, "--name", "first")
        self.until_step(first, "first", 1)
        labels = os.path.join(folder, "train-labels-idx1-ubyte")
        with open(labels, "rb") as f:
            data = f.read()
        with open(labels + ".new", "wb") as f:
            f.write(data[:8] + bytes((label + 1) % 10 for label in data[8:]))
        os.rename(labels + ".new", labels)
        self.start_nodes(1)
        second = self.start_training("--data", folder, "--batch", 50, "--workers", 2, "--epochs", 1, "--name", "second")
        self.assertEqual(second.wait(), FAILED, second.tail())
        self.assertRegex(second.err, f"the training data in {folder} has other contents than on .*: every node needs the same files")
        self.assertTrue(first.is_running(), first.tail())
        first.end()

    # Headers are looked at before a job starts (usage); what only reading shows, the reader on its node says (failed).
    # --- data files ---------------------------------------------------------------------------------------------------

    def spoiled(self, name, change):
        """A good folder in which file `name` is changed."""
        path = os.path.join(self.make_data(300, 100), name)
        with open(path, "rb") as f:
            data = f.read()
        with open(path, "wb") as f:
            f.write(change(data))
        return os.path.dirname(path)

    def test_a_missing_folder(self):
        self.classifier_refuses(NOT_FOUND, ["--data", self.path("nowhere")], self.path("nowhere"))

    def test_a_folder_without_the_files(self):
        os.mkdir(self.path("empty"))
        self.classifier_refuses(NOT_FOUND, ["--data", self.path("empty")], "train-images-idx3-ubyte")

    def test_image_files_that_are_none(self):
        cases = {
            "truncated": lambda d: d[:-1000],
            "header only": lambda d: d[:16],
            "half a header": lambda d: d[:7],
            "empty": lambda d: b"",
            "one byte too many": lambda d: d + b"x",
            "wrong magic": lambda d: b"\x00\x00\x0d\x03" + d[4:],
            "four billion images": lambda d: d[:4] + b"\xff\xff\xff\xff" + d[8:],
            "huge images": lambda d: d[:8] + b"\xff\xff\xff\xff\xff\xff\xff\xff" + d[16:],
            "no images": lambda d: d[:4] + b"\x00\x00\x00\x00" + d[8:16],
            "noise": lambda d: random.Random(1).randbytes(5000),
        }
        for label, change in cases.items():
            with self.subTest(label):
                folder = self.spoiled("train-images-idx3-ubyte", change)
                self.classifier_refuses((FAILED, USAGE), ["--data", folder], "train-images-idx3-ubyte")

    def test_a_pipe_is_no_data_file(self):
        folder = self.make_data(300, 100)
        os.remove(os.path.join(folder, "train-images-idx3-ubyte"))
        os.mkfifo(os.path.join(folder, "train-images-idx3-ubyte"))
        self.classifier_refuses(USAGE, ["--data", folder], "not a regular file")

    def test_what_would_end_a_training_late_ends_it_before_it_begins(self):
        folder = self.make_data(300, 100)
        long = ["--epochs", 1_000_000]
        os.mkfifo(self.path("pipe"))
        self.classifier_refuses(NOT_FOUND, ["--data", folder, "--save", self.path("nowhere/x"), *long], "--save", "nowhere")
        self.classifier_refuses(USAGE, ["--data", folder, "--save", folder, *long], "--save", "a folder")
        self.classifier_refuses(USAGE, ["--data", folder, "--save", self.path("pipe"), *long], "--save", "a device or a pipe")
        self.classifier_refuses(NOT_FOUND, ["--data", folder, "--losses", self.path("nowhere/x"), *long], "--losses", "nowhere")
        os.remove(os.path.join(folder, "t10k-images-idx3-ubyte"))
        self.classifier_refuses(NOT_FOUND, ["--data", folder, *long], "t10k-images-idx3-ubyte")

    def test_output_that_cannot_be_written_ends_no_training(self):
        folder, saved = self.make_data(300, 100), self.path("saved")
        arguments = ["--data", folder, "--epochs", 400, "--save", saved]
        for redirection, more, code in (("2>/dev/full", [], 0), ("2>&-", [], 0), ("0<&- 1>&- 2>&-", [], 0), (">/dev/full", ["--json"], FAILED),
                                        ("", ["--losses", "/dev/full"], FAILED)):
            with self.subTest(redirection, more=more):
                command = " ".join(map(str, [os.path.join(harness.BIN, "train_classifier"), *arguments, *more]))
                p = harness.program(["bash", "-c", f"{command} {redirection}"], self.environment)
                self.programs.append(p)
                self.assertEqual(p.wait(), code, p.tail())
                self.assertTrue(os.path.exists(saved), p.tail())
                os.remove(saved)

    def test_a_training_whose_last_checkpoint_is_not_there_has_failed(self):
        folder = self.path("checkpoints")
        p = self.start("train_classifier", "--data", self.make_data(300, 100), "--epochs", 400, "--checkpoint", folder, "--checkpoint-every", 20, "--json")
        self.until("there is a checkpoint", lambda: glob.glob(os.path.join(folder, "classifier", "*", "manifest*")))
        with open(self.path("in_the_way"), "w") as f:
            f.write("no folder")

        def is_in_the_way():  # the program makes its folder again when it is gone
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(IsADirectoryError):
                os.rename(self.path("in_the_way"), folder)
            return os.path.isfile(folder)

        self.until("a file stands where the folder was", is_in_the_way, pause=0)
        self.assertEqual(p.wait(), FAILED, p.tail())
        self.assertGreater(json.loads(p.out)["checkpoints_missing"], 0, p.tail())
        self.assertIn("its last checkpoint was not written", p.lines["err"][-1])

    def test_the_simulator_says_what_it_cannot_do(self):
        for arguments, code, part in ((["--seed", "-1"], USAGE, "--seed"), (["--seeds", "5..1"], USAGE, "--seeds"), (["--faults", "rain"], USAGE, "rain"),
                                      (["--trace", self.path("nowhere/x")], USAGE, "--trace"), (["--trace", "/dev/full", "--seeds", "1..3"], FAILED, "--trace")):
            with self.subTest(arguments):
                p = self.run_program("troupe-sim", *arguments)
                self.assertEqual(p.code, code, p.tail())
                self.assertIn(part, p.lines["err"][-1], p.tail())

    def test_a_process_that_may_not_have_what_it_needs_says_so(self):
        for limit, program in (("ulimit -n 4", "troupe-node"), ("ulimit -n 4", "train_classifier")):
            with self.subTest(limit, program=program):
                p = harness.program(["bash", "-c", f"{limit}; exec {os.path.join(harness.BIN, program)} --cluster {self.cluster}"], self.environment)
                self.programs.append(p)
                self.assertEqual(p.wait(), FAILED, p.tail())
                self.assertEqual(len(p.lines["err"]), 1, p.tail())

    def test_a_program_that_looks_for_a_cluster_can_be_interrupted(self):
        p = self.start("train_classifier", "--cluster", self.cluster, "--timeout", "1h", "--data", self.make_data(300, 100))
        time.sleep(0.5)
        p.send(signal.SIGINT)
        self.assertEqual(p.wait(), 128 + signal.SIGINT, p.tail())
        self.assertIn("interrupted", p.err)

    def test_labels_that_do_not_fit(self):
        for label, change in {"truncated": lambda d: d[:-1], "fewer": lambda d: d[:4] + struct.pack(">I", 299) + d[8:-1],
                              "images instead": lambda d: b"\x00\x00\x08\x03" + d[4:]}.items():
            with self.subTest(label):
                folder = self.spoiled("train-labels-idx1-ubyte", change)
                self.classifier_refuses((FAILED, USAGE), ["--data", folder], "train-labels-idx1-ubyte")

    def test_a_broken_gzip_file(self):
        folder = self.make_data(300, 100)
        plain = os.path.join(folder, "train-images-idx3-ubyte")
        with open(plain, "rb") as f:
            data = gzip.compress(f.read())
        os.remove(plain)
        with open(plain + ".gz", "wb") as f:
            f.write(data[:len(data) // 2])
        self.classifier_refuses((FAILED, USAGE), ["--data", folder], "train-images-idx3-ubyte")

    def test_a_label_out_of_range(self):
        folder = self.spoiled("train-labels-idx1-ubyte", lambda d: d[:100] + b"\x0a" + d[101:])
        p = self.run_program("train_classifier", "--data", folder)
        self.assertIn(p.code, (FAILED, USAGE), p.tail())
        self.assertIn("label", p.err)
        self.assertIn("10", p.err)

    def test_a_label_out_of_range_on_a_node(self):
        self.start_nodes(3)
        folder = self.spoiled("train-labels-idx1-ubyte", lambda d: d[:100] + b"\xff" + d[101:])
        p = self.start_training("--workers", 2, "--data", folder)
        self.assertIn(p.wait(), (FAILED, USAGE), p.tail())
        self.assertIn("label", p.err)
        for node in self.nodes:
            self.assertTrue(node.is_running(), node.tail())
        self.train("--workers", 2, "--epochs", 1, "--data", self.make_data(300, 100))

    # --- flags --------------------------------------------------------------------------------------------------------

    def test_optimizers_that_cannot_be(self):
        cases = {("--optimizer", "lion"): "--optimizer", ("--learning-rate", "nan"): "learning rate nan", ("--learning-rate", "-1"): "learning rate -1",
                 ("--momentum", "1"): "momentum 1 is not in [0, 1)", ("--optimizer", "adam", "--momentum", "0.5"): "--momentum goes with",
                 ("--optimizer", "adam", "--nesterov"): "nesterov is for sgd", ("--weight-decay", "inf"): "weight decay inf",
                 ("--clip-norm", "-1"): "clip norm -1", ("--clip-global-norm", "nan"): "clip global norm nan",
                 ("--schedule", "step", "--decay", "0", "--decay-every", "5"): "decay 0 is not in (0, 1]", ("--schedule", "step"): "needs --decay-every",
                 ("--seed", "-1"): "cannot be negative", ("--seed", "99999999999999999999999"): "--seed: 99999999999999999999999 is above the largest number", ("--warmup", "-1"): "--warmup", ("--clip-global-norm", "1e39"): "clip global norm 1e+39",
                 ("--losses", "here", "--save", "./here"): "name the same file", ("--decay", "0.5"): "--decay and --decay-every go with",
                 ("--schedule", "step", "--decay-every", "0"): "every 0 steps", ("--minimum", "0.5"): "--minimum goes with",
                 ("--schedule", "cosine", "--minimum", "2"): "minimum 2 is not in [0, 1]", ("--schedule", "triangle"): "--schedule",
                 ("--schedule", "linear", "--warmup", "100000"): "100000 of its warmup"}
        data = self.make_data(300, 100)
        for flags, says in cases.items():
            self.classifier_refuses(USAGE, ["--data", data, *flags], says)

    def test_flags_that_make_no_sense(self):
        for arguments, part in ((["--epoch", "3"], "--epoch"), (["--workers", "0"], "--workers"), (["--workers", "two"], "--workers"),
                                (["--update", "sometimes"], "--update"), (["--batch", "-1"], "--batch"), (["--shards"], "--shards"),
                                (["--timeout", "soon"], "--timeout"), (["stray"], "stray"), (["--fuse", "maybe"], "--fuse"),
                                (["--on-failure", "pray"], "--on-failure"), (["--credits", "0"], "--credits"),
                                (["--checkpoint", ""], "--checkpoint"), (["--checkpoint", self.path("c"), "--checkpoint-every", ""], "--checkpoint-every"),
                                (["--checkpoint-keep", "1"], "--checkpoint"), (["--name", ""], "--name")):
            with self.subTest(arguments):
                self.classifier_refuses(USAGE, arguments, part)
        for arguments, part in ((["--cluser", "x"], "--cluser"), (["--job", "boss"], "--job"), (["--threads", "0"], "--threads"),
                                (["--memory", "lots"], "--memory"), (["stray"], "stray")):
            with self.subTest(arguments):
                self.node_refuses(USAGE, arguments, part)

    def test_addresses_that_are_none(self):
        for text in ("nonsense", "127.0.0.1:99999", "127.0.0.1:", ":1", "127.0.0.1:x"):
            with self.subTest(text):
                self.node_refuses(USAGE, ["--cluster", self.cluster, "--listen", text], text)
                self.node_refuses(USAGE, ["--cluster", self.cluster, "--join", text], text)
                self.classifier_refuses(USAGE, ["--cluster", self.cluster, "--join", text, "--timeout", "300ms"], text)

    def test_cluster_names_that_are_none(self):
        for name in ("../x", "a/b", "", "x" * 65, "."):
            with self.subTest(name):
                self.node_refuses(USAGE, ["--cluster", name], "cluster")

    def test_a_port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            self.node_refuses(USAGE, ["--cluster", self.cluster, "--listen", address], address)

    def test_an_address_beyond_loopback_needs_a_token(self):
        self.node_refuses(DENIED, ["--cluster", self.cluster, "--listen", "0.0.0.0:0"], "0.0.0.0:0", "--token-file")

    def test_token_files(self):
        missing, empty = self.path("missing"), self.path("empty")
        open(empty, "w").close()
        os.chmod(empty, 0o600)
        for path in (missing, empty):
            with self.subTest(path):
                self.node_refuses(USAGE, ["--cluster", self.cluster, "--token-file", path], path)

    # --- clusters -----------------------------------------------------------------------------------------------------

    def test_a_cluster_that_is_not_there(self):
        self.classifier_refuses(UNREACHABLE, ["--cluster", self.cluster, "--timeout", "300ms"], self.cluster, "troupe-node")

    def test_a_member_that_is_not_there(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        self.classifier_refuses(UNREACHABLE, ["--cluster", self.cluster, "--join", f"127.0.0.1:{port}", "--timeout", "300ms"], self.cluster)

    def test_a_member_that_never_answers(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            self.classifier_refuses(UNREACHABLE, ["--cluster", self.cluster, "--join", f"127.0.0.1:{port}", "--timeout", "300ms"], self.cluster)

    def write_token(self, name, text):
        path = self.path(name)
        with open(path, "w") as f:
            f.write(text + "\n")
        os.chmod(path, 0o600)
        return path

    def test_a_wrong_token_is_denied(self):
        right, wrong = self.write_token("right", "r" * 40), self.write_token("wrong", "w" * 40)
        node = self.start_node("--token-file", right)
        address = self.address(node)
        with self.subTest("the tool"):
            done = self.run_program("troupe", "--cluster", self.cluster, "--join", address, "--token-file", wrong, "list", "nodes")
            self.assertEqual(done.code, DENIED, done.tail())
            self.assertIn("token", done.err)
        with self.subTest("a client"):
            self.classifier_refuses(DENIED, ["--cluster", self.cluster, "--join", address, "--token-file", wrong, "--timeout", "1s"], "token")
        with self.subTest("a node"):
            done = self.run_program("troupe-node", "--cluster", self.cluster, "--join", address, "--token-file", wrong)
            self.assertEqual(done.code, DENIED, done.tail())
            self.assertEqual(len(self.complaints(done)), 1, done.tail())
            self.assertIn(address, done.err)
            self.assertIn("token", done.err)
        with self.subTest("the right one"):
            p = self.run_program("train_classifier", "--cluster", self.cluster, "--join", address, "--token-file", right,
                                 "--data", self.make_data(300, 100))
            self.assertEqual(p.code, 0, p.tail())

    def test_another_cluster_name_is_denied(self):
        address = self.address(self.start_node())
        self.classifier_refuses(DENIED, ["--cluster", self.cluster + "-x", "--join", address, "--timeout", "1s"], self.cluster)

    def test_more_workers_than_nodes(self):
        self.start_nodes(2)
        self.classifier_refuses(USAGE, ["--cluster", self.cluster, "--workers", 3, "--data", self.make_data(300, 100)], "3", "2")

    def test_names_that_are_not_there(self):
        self.start_nodes(1)
        for arguments in (["show", "node", "nobody"], ["show", "actor", "nobody"], ["why", "nothing"]):
            with self.subTest(arguments):
                done = self.run_program("troupe", "--cluster", self.cluster, *arguments)
                self.assertEqual(done.code, NOT_FOUND, done.tail())

    # --- hostile bytes ------------------------------------------------------------------------------------------------

    def test_garbage_on_a_nodes_port_harms_no_job(self):
        common = ("--workers", 2, "--shards", 2, "--epochs", 40, "--data", self.make_data(), "--json")
        wanted = self.json_of(self.train_alone(*common))["weights_hash"]
        ports = [int(self.address(node).rsplit(":", 1)[1]) for node in self.start_nodes(3)]
        training = self.start_training(*common, "--name", "harmed")
        self.until_step(training, "harmed", 5)
        ports += [int(n["address"].rsplit(":", 1)[1]) for n in self.list("nodes") if n["kind"] == "client"]
        rounds, sockets = 0, []
        while training.is_running() and rounds < 20:
            for port in ports:
                sockets += attack(port, rounds)
            rounds += 1
        self.assertEqual(training.wait(), 0, training.tail())
        for s in sockets:
            s.close()
        self.assertGreater(rounds, 0)
        self.assertEqual(self.json_of(training)["weights_hash"], wanted)
        for node in self.nodes:
            self.assertTrue(node.is_running(), node.tail())
            self.assertEqual(self.complaints(node), [])
        self.assertEqual(self.json_of(self.train(*common))["weights_hash"], wanted)

    def test_a_flood_of_connections_harms_no_job(self):
        common = ("--workers", 2, "--shards", 2, "--epochs", 40, "--data", self.make_data(), "--json")
        wanted = self.json_of(self.train_alone(*common))["weights_hash"]
        ports = [int(self.address(node).rsplit(":", 1)[1]) for node in self.start_nodes(3)]
        training = self.start_training(*common, "--name", "flooded")
        self.until_step(training, "flooded", 5)
        sockets = [connect(port) for _ in range(200) for port in ports]
        self.assertEqual(training.wait(), 0, training.tail())
        for s in sockets:
            if s is not None:
                s.close()
        self.assertEqual(self.json_of(training)["weights_hash"], wanted)
        self.start_nodes(1)  # still takes newcomers

    def test_a_silent_connection_is_closed(self):
        port = int(self.address(self.start_node()).rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as s:
            s.settimeout(harness.HANG)
            try:
                while s.recv(4096):
                    pass
            except TimeoutError:
                self.fail(f"the node did not close a silent connection within {harness.HANG:.0f} s")

    def test_garbage_in_the_folder_of_sockets_harms_nobody(self):
        nodes = self.start_nodes(2)
        folder = next(root for root, _, names in os.walk(self.folder.name) if any(n.endswith(".sock") for n in names))
        with open(os.path.join(folder, "00000000deadbeef.sock"), "wb") as f:
            f.write(b"no socket")
        os.mkdir(os.path.join(folder, "0000000000000bad.sock"))
        os.symlink("/nowhere", os.path.join(folder, "00000000000000aa.sock"))
        silent = socket.socket(socket.AF_UNIX)
        silent.bind(os.path.join(folder, "00000000000000bb.sock"))
        silent.listen()
        babbling = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        babbling.settimeout(harness.HANG)
        for name in os.listdir(folder):
            for data in (b"", b"x", os.urandom(500), os.urandom(60000)):
                try:
                    babbling.sendto(data, os.path.join(folder, name))
                except OSError:
                    pass
        self.start_nodes(1)
        self.train("--workers", 3, "--epochs", 1, "--data", self.make_data(300, 100))
        for node in nodes:
            self.assertTrue(node.is_running(), node.tail())
        silent.close()
        babbling.close()


def connect(port):
    try:
        s = socket.create_connection(("127.0.0.1", port), timeout=10)
    except OSError:
        return None  # the node may refuse what is too much
    s.setblocking(False)
    return s


def attack(port, number):
    """Connections with bytes that no peer sends; returns those that stay open."""
    rng = random.Random(number)
    hello = b""
    probe = connect(port)
    if probe is not None:
        probe.settimeout(10)
        try:
            hello = probe.recv(4096)  # what a node says first: the best start for lies
        except OSError:
            pass
        probe.close()
    payloads = [
        rng.randbytes(1), rng.randbytes(64), rng.randbytes(100_000),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 4096, b"\xff" * 4096,
        hello[:len(hello) // 2],                     # half a frame, and silence
        hello, hello * 3,                            # its own words, back
        hello[:8] + b"\xff" * 8 + hello[16:],        # huge lengths
        bytes(b ^ (1 << rng.randrange(8)) if i == rng.randrange(max(1, len(hello))) else b for i, b in enumerate(hello)),
        b"",                                         # silence
    ]
    open_ones = []
    for payload in payloads:
        s = connect(port)
        if s is None:
            continue
        try:
            s.send(payload)
        except OSError:
            pass
        if rng.random() < 0.5:
            s.close()
        else:
            open_ones.append(s)
    return open_ones


if __name__ == "__main__":
    harness.main()
