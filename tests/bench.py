#!/usr/bin/env python3
"""troupe-bench measures what it says: every line is there, complete and in the same units. No timing decides here.

    bench.py TROUPE_BENCH
"""

import json
import sys

import limits

KEYS = ["bench", "case", "unit", "median", "min", "max", "runs", "actors", "baseline", "baseline_median", "ratio", "ratio_of", "goal"]
IN_FLIGHT = [f"{n} in flight" for n in (1, 8, 64)]
SIZES = ["4 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB"]


def expected(peers):
    for n in IN_FLIGHT:
        for op in ("relu", "add (fed operand)"):
            bare = "bare typed CAF message" if op == "relu" else "two bare typed CAF messages"
            yield "hop", f"1000 x {op}, {n}", "ns", bare
            yield "hop", f"1000 x {op}, {n}", "ns", "plain virtual call"
        for where in ("one stream", "half and half over two streams", "every hop crosses"):
            yield "threads", f"pinned, {where}, {n}", "ns", "CAF's stealing, 2 threads"
    for fuse in ("one actor", "--fuse off"):
        yield "fused", f"1000 ops of 16 floats, {fuse}", "ns", "a loop called by pointer"
    for n in (1, 2):
        yield "fan", f"1000 independent ops, 2 streams, {n} in flight", "ns", "on one stream"
    for what in ("two ops of 10 ms, 2 threads", "a reader and an op of 3 ms each, 2 threads, a step",
                 "20 runs of 5 ms from 4 threads, 4 streams", "asynchronous training, a reader and 3 stages of 2 ms, 4 threads, a step"):
        yield "side_by_side", what, "ms", "the best possible"
    yield "small_run", "a run, 1 thread", "us", "a step"
    yield "small_run", "a run, 4 threads at once", "us", "of 1 thread"
    for n in ("1 thread", "4 threads at once"):
        yield "small_run", f"a run on another process, {n}", "us", "bare blocking TCP"
    for batch in (128, 16, 1):
        yield "own_loop", f"batch {batch}", "us", "train()"
    for threads in (2, 4, 8):
        yield "own_loop", f"asynchronous, batch 16, {threads} threads", "steps/s", "1 thread"
    yield "own_loop", "batch 128, on another process", "us", "in this process"
    yield "loop", "an iteration of 1000, two variables", "ns", "written out"
    yield "loop", "an op of a branch of 100, not taken", "ns", "taken"
    yield "pipeline", "4 stages on 2 streams, a step", "us", "one step at a time"
    yield "pipeline", "CPU time of 2 streams", "of 1", "all of the time"
    for what, beside in (("drained", "virtual calls"), ("1 thread", "drained"), ("2 threads", "1 thread"), ("messages, 1 thread", "calls"),
                         ("messages, 2 threads in turn", "1 thread")):
        yield "pipelines", "ten light stages, " + what, "1/s", beside
    yield "pipelines", "a map of 20 us, 2 replicas, 2 threads", "1/s", "1 thread"
    for what in ("1 thread", "messages, 1 thread"):
        yield "pipelines", "ten light stages, " + what, "1/s", "bare CAF messages"
    for whose in peers:
        for n in ("1 thread", "2 threads"):
            for filters in ("in order", "parallel"):
                yield "pipelines", "ten light stages, " + n, "1/s", f"{whose}, {filters}"
            yield "pipelines", "a map of 20 us, " + n, "1/s", whose
    for what, unit, beside in (("64 B, one item at a time, median", "us", "bare TCP"), ("64 B, one item at a time, 99 %", "us", "bare TCP"),
                               ("64 B, items", "1/s", "bare TCP, a call each"), ("64 B, items", "1/s", "bare TCP, 64 a call"),
                               ("64 KiB, items", "1/s", "bare TCP, a call each")):
        yield "far_pipelines", what, unit, beside
    yield "live", "8 changes of a running stage, the longest gap", "ms", "without changes"
    yield "live", "automatic replicas, 1 pipelines, after 3 s", "1/s", "16 replicas each"
    yield "live", "automatic replicas, the least of 1 pipelines", "1/s", "16 replicas each"
    for model in ("perceptron, batch 128", "perceptron, batch 16", "cnn, batch 16", "language model, batch 2", "random graph of 10,000 ops"):
        for off in ("fuse", "fold", "simplify", "share", "share_memory", "order_reads", "all of them"):
            yield "passes", f"{model}, without {off}", "us", "all passes"
    for fuse in ("", ", --fuse off"):
        yield "random_graph", f"1000 ops{fuse}, build to first step, an op", "us", "with 1,000 ops"
        yield "random_graph", f"1000 ops{fuse}, a step, an op", "ns", "bytes of memory an op"
    yield "step_empty", "feed, fetch", "us", "two bare CAF messages"
    for batch in (128, 16, 1):
        for fuse in ("", ", --fuse off"):
            yield "training_step", f"batch {batch}{fuse}", "us", "hand-written loop"
    for batch in (128, 16, 1):
        yield "timeline", f"a training step, batch {batch}, recorded", "us", "not recorded"
    for batch in (128, 1):
        yield "timeline", f"a training step on an asynchronous host device, batch {batch}, recorded", "us", "not recorded"
    for n in IN_FLIGHT[:2]:
        yield "timeline", f"a hop, {n}, recorded", "ns", "not recorded"
    for what, unit, beside in ((", one while it trains", "steps/s", "the same without"), (", written", "GB/s", "write, fsync")):
        yield "checkpoint", "0.0013 GB of variables" + what, unit, beside
    for what in ("PNG, 64 x 64", "JPEG, 256 x 256"):
        yield "images", what, "1/s", "the library alone"
    for what in ("transport to transport", "link to link", "op to op"):
        yield "roundtrip", f"64 B, {what}", "us", "bare blocking TCP"
    for size in SIZES:
        for checksums in ("", ", checksums"):
            yield "stream", size + checksums, "GB/s", "bare TCP"
            yield "stream", size + checksums + ", CPU of both", "s/GB", "bare TCP"
    for ranks, bytes_and_how in ((2, ("4096 bytes, exchange", "1048576 bytes, exchange")), (4, ("4096 bytes, exchange", "1048576 bytes, direct"))):
        for what in bytes_and_how:
            for how in ("", ", sockets alone"):
                yield "all_reduce", f"{ranks} processes, {what}{how}", "us", "bare blocking TCP"


def run(*arguments):
    return limits.run(arguments, seconds=280, text=True)


def check_line(line):
    problems = [f"keys {list(line)}"] if list(line) != KEYS else []
    cpu = line["unit"] == "s/GB"  # a quick run may take less than a tick of the kernel's accounting
    for key in ("median", "min", "max", "baseline_median", "ratio"):
        if not isinstance(line[key], (int, float)) and not cpu:
            problems.append(f"{key} is {line[key]}")
        elif not cpu and not line[key] > 0:
            problems.append(f"{key} is {line[key]}")
    if not cpu and not line["min"] <= line["median"] <= line["max"]:
        problems.append("min, median and max are out of order")
    if line["runs"] != 1:
        problems.append(f"runs is {line['runs']}")
    return [f"{line['bench']}, {line['case']}: {p}" for p in problems]


def main(bench):
    done = run(bench, "--quick", "--json")
    problems = [] if done.returncode == 0 else [f"exit {done.returncode}: {done.stderr.strip()}"]
    lines = [json.loads(text) for text in done.stdout.splitlines()]
    found = [(x["bench"], x["case"], x["unit"], x["baseline"]) for x in lines]
    wanted = list(expected([w for w in ("TBB", "Taskflow") if "without " + w not in done.stderr]))
    problems += [f"missing: {w}" for w in wanted if w not in found]
    problems += [f"not expected: {f}" for f in found if f not in wanted]
    if len(found) != len(set(found)):
        problems.append("a line came twice")
    for line in lines:
        problems += check_line(line)

    unknown = run(bench, "hopp")
    if unknown.returncode != 2 or unknown.stdout or len(unknown.stderr.splitlines()) != 1 or "'hopp'" not in unknown.stderr:
        problems.append(f"an unknown name: exit {unknown.returncode}, {unknown.stderr!r}")
    listed = run(bench, "--list")
    names = [text.split()[0] for text in listed.stdout.splitlines()]
    if names != list(dict.fromkeys(x["bench"] for x in lines)):
        problems.append(f"--list says {names}")
    text = run(bench, "step_empty", "--quick", "--runs", "3")
    if text.returncode != 0 or not text.stdout.startswith("step_empty ") or " 3 runs " not in text.stdout:
        problems.append(f"as text: exit {text.returncode}, {text.stdout!r}")
    print("\n".join(problems) or f"{len(lines)} lines")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
