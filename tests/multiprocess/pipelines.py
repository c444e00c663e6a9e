#!/usr/bin/env python3
"""Pipelines as programs: the examples, signals, and what tools say of them: pipelines.py BIN_FOLDER"""

import collections
import csv
import gzip
import http.client
import json
import math
import os
import random
import re
import signal
import socket
import struct
import subprocess
import time
import zlib

import harness

FAILED, USAGE, NOT_FOUND = 1, 2, 6


def png(colour, side=40):
    """A picture of one colour."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes(colour) * side for _ in range(side))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows))
            + chunk(b"IEND", b""))


class pipelines(harness.cluster_test):
    def write(self, name, data):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def finish(self, program, *arguments, code=0):
        p = self.run_program(program, *arguments)
        self.assertEqual(p.code, code, f"{program} {' '.join(map(str, arguments))}\n{p.tail()}")
        return p

    def rows(self, name):
        with open(self.path(name), newline="") as f:
            return list(csv.reader(f))

    # --- examples -----------------------------------------------------------------------------------------------------

    def test_hello_pipeline(self):
        p = self.finish("hello_pipeline")
        self.assertEqual(p.out.splitlines()[:2], ["4 4", "16 10"])
        self.assertIn("BUSY", p.err)
        told = self.finish("hello_pipeline", "--explain").out
        self.assertIn("map x 2", told)
        self.assertIn("at most 64.0 MiB in all edges together", told)
        self.assertEqual(self.finish("hello_pipeline", "--quiet", "--threads", 2, "--memory", "1MiB").err, "")
        told = json.loads(self.finish("hello_pipeline", "--quiet", "--json").out.splitlines()[-1])
        self.assertEqual((told["topology"], told["ended"], told["replicas"]), ("hello_pipeline", "done", []))
        self.assertGreater(told["seconds"], 0)
        self.assertTrue(all(abs(s["busy"] + s["starved"] + s["blocked"] - 1) < 1e-3 for s in told["stages"]), told)
        self.finish("hello_pipeline", "--thread", 2, code=USAGE)
        self.finish("hello_pipeline", "--memory", "much", code=USAGE)

    def test_hello_pipeline_is_eight_lines(self):
        with open(os.path.join(os.path.dirname(__file__), "../../apps/hello_pipeline.cpp")) as f:
            body = re.search(r"int main\(.*?\) \{\n(.*?)\n\}", f.read(), re.S).group(1)
        self.assertLessEqual(len(body.splitlines()), 8)

    def test_words_are_counted_as_sort_and_uniq_count_them(self):
        words = {}
        for i in range(5):
            text = "\n".join(" ".join(f"word{(i * 7919 + j * j) % (97 + i)}" for j in range(k % 40)) for k in range(400))
            for word in text.split():
                words[word] = words.get(word, 0) + 1
            self.write(f"in/{i}.txt", gzip.compress(text.encode()) if i % 2 else text.encode())
        for threads in (1, 3):
            self.finish("count_words", self.path("in/*.txt"), self.path("out.csv"), "--threads", threads, "--replicas", 3)
            self.assertEqual(self.rows("out.csv"), [["word", "count"]] + [[w, str(n)] for w, n in sorted(words.items())])
        p = self.finish("count_words", self.path("none/*.txt"), self.path("other.csv"), code=NOT_FOUND)
        self.assertIn("count_words.cpp", p.err)
        self.assertFalse(os.path.exists(self.path("other.csv")))

    def test_a_program_that_is_killed_goes_on_where_it_was(self):
        words = collections.Counter()
        for i in range(3):
            text = "\n".join(" ".join(f"word{(i * 7919 + j * j) % (97 + i)}" for j in range(k % 40)) for k in range(10000)) * 8
            words.update(text.split())
            self.write(f"in/{i}.txt", gzip.compress(text.encode(), 1) if i % 2 else text.encode())
        chance = random.Random(5)
        command = ["count_words", self.path("in/*.txt"), self.path("out.csv"), "--quiet", "--threads", 2, "--checkpoint", self.path("kept"),
                   "--checkpoint-every", "20ms", "--resume"]
        kept, ended = self.path("kept/count_words.checkpoint"), []

        while not ended or ended[-1] != 0:
            before = self.inode(kept)
            p = self.start(*command)
            # Each life comes further than the one before, and the last one to the end.
            self.until("it is kept once more, or done", lambda: not p.is_running() or self.inode(kept) not in (None, before))
            time.sleep(chance.uniform(0, 0.04))
            if len(ended) < 12:
                p.send(signal.SIGKILL if len(ended) % 3 else signal.SIGTERM)
            ended.append(p.wait())
            self.assertIn(ended[-1], (0, -signal.SIGKILL, 128 + signal.SIGTERM), p.tail())
            if ended[-1] > 0:  # a signal that suspends it
                self.assertTrue(os.path.exists(kept), p.tail())
            self.assertEqual(os.path.exists(self.path("out.csv")), ended[-1] == 0)
        self.assertEqual(self.rows("out.csv"), [["word", "count"]] + [[w, str(n)] for w, n in sorted(words.items())])
        self.assertFalse(os.path.exists(kept))

    def test_what_is_asked_of_checkpoints_and_cannot_be_is_told(self):
        self.write("in/0.txt", b"a b c\n")
        counts = ["count_words", self.path("in/*.txt"), self.path("out.csv")]
        self.assertRegex(self.finish(*counts, "--resume", code=USAGE).err, "--checkpoint-every and --resume need --checkpoint DIR")
        self.assertRegex(self.finish(*counts, "--checkpoint", self.path("kept"), "--checkpoint-every", "0s", code=USAGE).err, "give a time above 0")
        self.assertIn(f"kept in {self.path('kept')} each 2.0 s", self.finish(*counts, "--checkpoint", self.path("kept"), "--checkpoint-every", "2s", "--explain").out)
        p = self.finish("hello_pipeline", "--checkpoint", self.path("kept"), code=USAGE)
        self.assertRegex(p.err, r"hello_pipeline\.cpp:\d+: .*no checkpoint can have it: its function may keep something")
        os.makedirs(self.path("kept"), exist_ok=True)
        self.write("kept/count_words.checkpoint", b"no checkpoint")
        p = self.finish(*counts, "--checkpoint", self.path("kept"), "--resume", code=FAILED)
        self.assertIn("count_words.checkpoint: it is no checkpoint of a topology", p.err)

    def test_pictures_are_classified_and_bad_ones_told(self):
        colours = {"red": (200, 10, 30), "green": (9, 180, 70), "blue": (0, 0, 99)}
        wanted = []
        for i in range(60):
            name = sorted(colours)[i % 3]
            path = self.write(f"in/{i:03}.png", png(colours[name]))
            wanted.append([path, name])
        whole = png(colours["red"])
        bad = {self.write("in/007_cut.png", whole[:len(whole) - 30]), self.write("in/031_empty.png", b""),
               self.write("in/044_text.png", b"no picture at all")}
        for threads in (1, 2):
            p = self.finish("classify_images", self.path("in/*.png"), "--labels", self.path("labels.csv"), "--failures", self.path("failures.csv"),
                            "--threads", threads)
            self.assertEqual(self.rows("labels.csv"), [["path", "label"]] + wanted, p.tail())
            failures = self.rows("failures.csv")
            self.assertEqual(failures[0], ["stage", "source", "number", "label", "reason"])
            self.assertEqual({row[3] for row in failures[1:]}, bad)
            self.assertIn("3 skipped", re.sub(r"([12]) skipped.*\n.*([12]) skipped", "3 skipped", p.err))

    def test_a_folder_is_watched_until_ctrl_c(self):
        self.write("in/a.png", png((200, 0, 0)))
        p = self.start("classify_images", self.path("in/*.png"), "--watch", "--labels", self.path("labels.csv"),
                       "--failures", self.path("failures.csv"))
        # Under its name at once, as a rename makes it.
        self.write("in/b.tmp", png((0, 0, 200)))
        os.rename(self.path("in/b.tmp"), self.path("in/b.png"))
        self.write("in/c.png", b"no picture")
        # The last stages write when they have much, or at the end; progress says what has arrived.
        self.assertIsNotNone(p.line(r"^3 items done", "err"))
        p.send(signal.SIGINT)
        self.assertEqual(p.wait(), 130, p.tail())
        self.assertEqual([row[1] for row in self.rows("labels.csv")], ["label", "red", "blue"])
        self.assertEqual(len(self.rows("failures.csv")), 2)

    def test_numbers_are_served_over_http(self):
        p = self.start("serve_http", "--listen", "127.0.0.1:0", "--numbers", 3, "--quiet")
        said, _ = p.line(r"^serve_http: at http://([\d.]+):(\d+)/predict$", "err")
        host, port = said.groups()
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self.addCleanup(connection.close)

        def ask(method, path, body=None):
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

        self.assertEqual(ask("GET", "/healthz"), (200, "ok\n"))
        for i in range(50):
            status, body = ask("POST", "/predict", json.dumps([i % 7, 1.5, -2]))
            self.assertEqual(status, 200, body)
            powers = [math.exp(x) for x in (i % 7, 1.5, -2)]
            for got, power in zip(json.loads(body), powers, strict=True):
                self.assertAlmostEqual(got, power / sum(powers), places=5)
        for bad in ("[1, 2]", "[1, 2, \"3\"]", "nonsense", "[1, 2, 3"):
            self.assertEqual(ask("POST", "/predict", bad), (400, "a JSON array of 3 numbers is needed\n"))
        self.assertEqual(ask("GET", "/predict")[0], 405)
        p.send(signal.SIGINT)
        self.assertEqual(p.wait(), 130, p.tail())
        self.finish("serve_http", "--listen", "nowhere", code=USAGE)

    def test_sensors_are_watched_over_tcp(self):
        p = self.start("watch_sensors", "--listen", "127.0.0.1:0", "--window", 64, "--limit", 0.9, "--features", self.path("features.csv"),
                       "--failures", self.path("failures.csv"))
        said, _ = p.line(r"^watch_sensors: at ([\d.]+):(\d+)$", "err")
        at = (said.group(1), int(said.group(2)))
        # Samples that are whole quarters: sums of them are exact.
        samples = {sensor: [((i * (7 + sensor)) % 9 - 4) / 4 for i in range(640)] for sensor in (3, 1, 2)}
        for sensor in samples:
            samples[sensor][-1] = 50.0  # the last window of each is loud
        sockets = {sensor: socket.create_connection(at, timeout=60) for sensor in samples}
        for part in range(0, 640, 40):
            if part == 320:  # before others of the same connection, which are waited for
                sockets[3].sendall(struct.pack("<I", 5) + b"12345" + struct.pack("<IIf", 8, 9, math.nan))
            for sensor, s in sockets.items():
                body = struct.pack("<I40f", sensor, *samples[sensor][part:part + 40])
                s.sendall(struct.pack("<I", len(body)) + body)
        wanted = {}
        for sensor, all in samples.items():
            for window in range(19):
                x = all[window * 32:window * 32 + 64]
                wanted[sensor, window] = (sum(x) / 64, math.sqrt(sum(v * v for v in x) / 64), max(abs(v) for v in x))
        for sensor, s in sockets.items():
            self.assertIsNotNone(p.line(f"^alarm: sensor {sensor}, window 18: "), p.tail())
            s.close()
        p.send(signal.SIGINT)
        self.assertEqual(p.wait(), 130, p.tail())
        rows = self.rows("features.csv")
        self.assertEqual(rows[0], ["sensor", "window", "mean", "rms", "peak"])
        got = {(int(r[0]), int(r[1])): tuple(map(float, r[2:])) for r in rows[1:]}
        self.assertEqual(len(rows) - 1, 3 * 19)
        for key, values in wanted.items():
            for a, b in zip(got[key], values, strict=True):
                self.assertAlmostEqual(a, b, places=12)
        alarms = re.findall(r"^alarm: sensor (\d+), window (\d+): ([\d.]+)$", p.out, re.M)
        self.assertEqual({(int(s), int(w)) for s, w, _ in alarms}, {key for key, v in wanted.items() if v[1] > 0.9})
        failures = " ".join(" ".join(r) for r in self.rows("failures.csv")[1:])
        self.assertIn("5 bytes of", failures)
        self.assertIn("sensor 9 says what is no number", failures)
        self.assertRegex(p.err, r"alarm .* latency p50 [\d.]+ [mu]s, p99 ")
        self.finish("watch_sensors", "--listen", "nowhere", code=USAGE)
        for program in ("watch_sensors", "serve_http", "count_words", "classify_images"):
            self.assertRegex(self.finish(program, "--bogus", code=USAGE).err, rf"^{program}: .* \(see --help\)$")

    # --- ends ---------------------------------------------------------------------------------------------------------

    def test_a_signal_drains_it_and_a_second_one_ends_it(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            p = self.start("topologies", "decode", "--quiet")
            self.assertIsNotNone(p.line("^runs$"))
            p.send(number)
            self.assertEqual(p.wait(), 128 + number, p.tail())
            self.assertRegex(p.out, r"^runs\n\d+$")
        self.start_nodes(1)
        p = self.start("topologies", "decode_hangs", "--quiet", "--cluster", self.cluster)
        self.until("it hangs", lambda: any(a["name"] == "decode" and a["state"] == "running" and a["since_seconds"] > 0.2
                                           for a in self.list("actors")))
        p.send(signal.SIGTERM)
        self.until("the first one was seen", lambda: p.is_running())
        while p.is_running():
            p.send(signal.SIGTERM)
        self.assertNotEqual(p.wait(), 0)

    def test_a_stage_that_throws_is_told_in_one_line(self):
        p = self.finish("topologies", "score_throws", "--quiet", code=FAILED)
        self.assertRegex(p.err, r"^topologies: score/[01] \(topologies\.cpp:\d+\): item 50 of make: item of doom$")

    def test_lines_of_standard_input(self):
        lines = [f"line {i}" for i in range(1000)] + ["", "a last one without an end"]
        done = subprocess.run([os.path.join(harness.BIN, "topologies"), "stdin", "--quiet"], input="\n".join(lines), text=True, capture_output=True,
                              timeout=harness.HANG)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.splitlines(), [l.upper() for l in lines])
        # Nobody reads what it prints: then nobody needs its lines.
        p = subprocess.Popen([os.path.join(harness.BIN, "topologies"), "stdin", "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        p.stdin.write("one\n")
        p.stdin.flush()
        self.assertEqual(p.stdout.readline(), "ONE\n")
        p.stdin.close()
        p.stdout.close()
        self.assertEqual(p.wait(harness.HANG), 0)

    def test_an_output_that_breaks_leaves_the_last_checkpoint(self):
        for is_signalled in (False, True):
            command = ["topologies", "endless", "--quiet", "--name", "numbers", "--checkpoint", self.path("kept"), "--checkpoint-every", "20ms", "--resume"]
            p = subprocess.Popen([os.path.join(harness.BIN, command[0]), *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            kept = self.path("kept/numbers.checkpoint")
            last = [b"-1"]

            def is_kept():
                last[0] = p.stdout.read1(1 << 20).splitlines()[-1:] or last[0]
                return os.path.exists(kept)
            self.until("it is kept", is_kept)
            if is_signalled:  # as of a terminal, which gives it to both ends of a pipe
                p.stdout.close()
                p.send_signal(signal.SIGINT)
            else:
                p.stdout.close()
            said = p.stderr.read().decode()
            p.stderr.close()
            self.assertEqual(p.wait(harness.HANG), 130 if is_signalled else 1, said)
            self.assertTrue(os.path.exists(kept), said)
        # Nothing between is lost: it goes on at or before what was not read.
        p = subprocess.Popen([os.path.join(harness.BIN, command[0]), *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        first = int(p.stdout.readline())
        p.kill()
        p.stdout.close()
        p.wait()
        self.assertGreater(first, 0)

    # --- tools --------------------------------------------------------------------------------------------------------

    def test_tools_know_its_stages_and_why_it_is_slow_or_stuck(self):
        self.start_nodes(1)
        for what, root in (("score_hangs", "score/"), ("keep_hangs", "keep"), ("make_hangs", "make")):
            p = self.start("topologies", what, "--quiet", "--cluster", self.cluster, "--name", "numbers", "--threads", 2)
            self.until("it hangs", lambda: any(a["name"].startswith(root) and a["state"] == "running" and a["since_seconds"] > 1.5
                                               for a in self.list("actors")), seconds=60)
            jobs = [j for j in self.list("jobs") if j["state"] == "running"]
            self.assertEqual([j["name"] for j in jobs], ["numbers"])
            stages = {a["name"]: a for a in self.list("actors") if a["kind"] == "stage"}
            self.assertLessEqual({"make", "decode", "score/0", "score/1", "keep"}, set(stages))
            said = self.tool("why")
            self.assertRegex(said, rf"stage {root}", said)
            self.assertIn(" runs, for ", said)
            p.send(signal.SIGKILL)
            p.wait()
            self.until("it is gone", lambda: not [j for j in self.list("jobs") if j["state"] == "running"])

    def test_tools_pause_it_change_its_replicas_and_drain_it(self):
        self.start_nodes(1)
        p = self.start("topologies", "score", "--quiet", "--json", "--cluster", self.cluster, "--name", "numbers", "--threads", 2)
        self.assertIsNotNone(p.line("runs"), p.tail())

        def stages():
            return {a["name"]: a for a in json.loads(self.tool("topology", "show", "numbers", "--json"))}

        self.assertEqual(set(stages()) - {"score/deal", "score/gather"}, {"make", "decode", "score/0", "score/1", "keep"})
        self.until("each port of the first stages tells of its items", lambda: all(
            p["items"] > 0 for a in self.list("actors") if a["name"] in ("make", "decode") for p in a["ports"] if p["name"].startswith(("in", "out"))))
        self.assertRegex(self.tool("topology", "show", "numbers"), r"numbers: running, \d+ items have arrived\nSTAGE +NODE")
        self.assertEqual(self.tool("topology", "pause", "numbers"), "numbers is paused\n".strip())
        self.assertIn("is paused: its sources stand still until troupe topology resume numbers", self.tool("why", "numbers"))
        self.until("what was under way has arrived", lambda: stages()["keep"]["messages_in"] == stages()["make"]["messages_out"])
        made = stages()["make"]["messages_out"]
        self.assertEqual(self.json("topology", "pause", "numbers"), {"job": "numbers", "state": "paused"})
        self.assertEqual(stages()["make"]["messages_out"], made)
        self.assertEqual(self.json("topology", "resume", "numbers"), {"job": "numbers", "state": "running"})
        self.assertIn("score works with 4 of 4 replicas", self.tool("topology", "replicas", "numbers", "score", "4"))
        self.until("they work", lambda: {"score/2", "score/3"} <= set(stages()))
        self.assertEqual(self.json("topology", "replicas", "numbers", "score", "1"), {"job": "numbers", "stage": "score", "replicas": 1})
        self.until("the others have nothing to do", lambda: [stages()[f"score/{i}"]["queue"] for i in (1, 2, 3)] == [0, 0, 0])
        idle = [stages()[f"score/{i}"]["messages_in"] for i in (1, 2, 3)]
        worked = stages()["score/0"]["messages_in"]
        self.until("one works alone", lambda: stages()["score/0"]["messages_in"] > worked + 10)
        self.assertEqual([stages()[f"score/{i}"]["messages_in"] for i in (1, 2, 3)], idle)
        for arguments, code, says in ((("replicas", "numbers", "score", "5"), FAILED, "score has from 1 to 4 replicas"),
                                      (("replicas", "numbers", "scor", "2"), NOT_FOUND, "there is no stage 'scor' here"),
                                      (("replicas", "numbers", "decode", "2"), FAILED, "whose number stays"),
                                      (("move", "numbers", "score", "n1"), FAILED, "score stays where it is"),
                                      (("pause", "nobody"), NOT_FOUND, "there is no topology 'nobody' here"),
                                      (("show", "nobody"), NOT_FOUND, "there is no topology 'nobody' here"),
                                      (("replicas", "numbers", "score", "many"), USAGE, "'many' is no number of replicas"),
                                      (("dance", "numbers"), USAGE, "there are show, pause, resume, drain, replicas and move")):
            q = self.run_program("troupe", "--cluster", self.cluster, "topology", *arguments)
            self.assertEqual((q.code, len(q.err.splitlines())), (code, 1), q.tail())
            self.assertIn(says, q.err)
        self.tool("topology", "pause", "numbers")
        said = self.tool("topology", "drain", "numbers")
        self.assertRegex(said, r"^numbers (has ended, and its program|is done, at step \d+)$")
        self.assertEqual(p.wait(), 0, p.tail())
        # Everything that was made has arrived.
        told = json.loads(p.out.splitlines()[-2])
        self.assertEqual((told["topology"], told["ended"]), ("numbers", "drained"))
        items = {s["stage"]: s for s in told["stages"]}
        self.assertEqual((int(p.out.splitlines()[-1]), items["keep"]["items_in"]), (items["make"]["items_out"],) * 2)
        self.assertEqual(told["replicas"], [{"stage": "score", "working": 1, "most": 4, "why": "as was asked for"}])
        again = self.start("topologies", "score", "--quiet", "--cluster", self.cluster, "--name", "numbers", "--threads", 2)
        self.assertIsNotNone(again.line("runs"), again.tail())
        self.assertRegex(self.tool("job", "stop", "numbers"), "^numbers (has ended, and its program|is done)")
        self.assertEqual(again.wait(), 0, again.tail())

    def json(self, *arguments):
        return json.loads(self.tool(*arguments, "--json"))


if __name__ == "__main__":
    harness.main()
