#!/usr/bin/env python3
"""How busy the streams of devices were, and how much of it at once: stream_profile.py TRACE.json, or stream_profile.py BIN [--gpus host:1] [--seconds 3]

TRACE.json: what `troupe timeline` wrote. BIN: the folder with the programs: trains a classifier on a device of a node, records it, and says the same. Times of a
device's row are of what ran there, not of what was enqueued. Not one of the tests that CI runs.
"""

import argparse
import collections
import json
import os
import sys
import tempfile

from step_profile import record

STREAMS = ("compute", "copy_in", "copy_out")


def merged(slices):
    """Intervals without overlap, in order."""
    out = []
    for begin, end in sorted(slices):
        if out and begin <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([begin, end])
    return out


def length(intervals):
    return sum(end - begin for begin, end in intervals)


def common(a, b):
    """Time that lies in both, each of them merged."""
    total, i, k = 0.0, 0, 0
    while i < len(a) and k < len(b):
        total += max(0.0, min(a[i][1], b[k][1]) - max(a[i][0], b[k][0]))
        if a[i][1] < b[k][1]:
            i += 1
        else:
            k += 1
    return total


def profile(events):
    """Device -> stream -> intervals, and device -> what its slices are: category -> (number, bytes)."""
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("ph") == "M" and e["name"] == "thread_name"}
    nodes = {e["pid"]: e["args"]["name"] for e in events if e.get("ph") == "M" and e["name"] == "process_name"}
    ran, kinds = collections.defaultdict(lambda: collections.defaultdict(list)), collections.defaultdict(lambda: collections.defaultdict(lambda: [0, 0]))
    for e in events:
        device, _, stream = rows.get((e.get("pid"), e.get("tid")), "").partition("/")
        if e.get("ph") != "X" or not device.startswith("gpu:") or stream not in STREAMS:
            continue
        where = f"{nodes.get(e['pid'], e['pid'])}, {device}"
        ran[where][stream].append((e["ts"], e["ts"] + e["dur"]))
        kinds[where][e["cat"]][0] += 1
        kinds[where][e["cat"]][1] += e["args"].get("bytes", e["args"].get("kernels", 0))
    return {where: {s: merged(streams[s]) for s in STREAMS} for where, streams in ran.items()}, kinds


def report(events):
    ran, kinds = profile(events)
    if not ran:
        return "no stream of a device ran anything while this was recorded"
    lines = []
    for where, streams in sorted(ran.items()):
        every = [i for s in streams.values() for i in s]
        span = max(end for _, end in every) - min(begin for begin, _ in every)
        copies = merged(streams["copy_in"] + streams["copy_out"])
        both = common(streams["compute"], copies)
        any_of = length(merged(every))
        percent = lambda part, of: f"{100 * part / of:.1f} %" if of else "-"
        lines += [f"{where}, over {span / 1000:.1f} ms", "", "| stream | busy, ms | of the time |", "|---|---|---|"]
        lines += [f"| {s} | {length(streams[s]) / 1000:.2f} | {percent(length(streams[s]), span)} |" for s in STREAMS]
        lines += [f"| any of them | {any_of / 1000:.2f} | {percent(any_of, span)} |", f"| compute and a copy at once | {both / 1000:.2f} | {percent(both, span)} |", ""]
        lines += [f"{percent(both, length(copies))} of what copies take lies under compute."]
        amounts = {"memcpy": "bytes", "replay": "kernels"}
        lines += [", ".join(f"{n} x {kind}" + (f" ({amount} {amounts[kind]})" if kind in amounts else "") for kind, (n, amount) in sorted(kinds[where].items())), ""]
    return "\n".join(lines)


def self_test():
    row = lambda tid, name: {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}}
    ran = lambda tid, begin, end, kind, **args: {"ph": "X", "pid": 1, "tid": tid, "ts": begin, "dur": end - begin, "cat": kind, "name": "x", "args": args}
    events = [row(1, "gpu:0"), row(2, "gpu:0/compute"), row(3, "gpu:0/copy_in"), row(4, "cpu:0"), ran(1, 0, 100, "op"), ran(2, 0, 30, "replay", kernels=3), ran(2, 40, 60, "kernel"),
              ran(3, 20, 50, "memcpy", bytes=64), ran(4, 0, 1000, "op")]
    ran_there, kinds = profile(events)
    (where, streams), = ran_there.items()
    assert length(streams["compute"]) == 50 and length(streams["copy_in"]) == 30
    assert common(streams["compute"], streams["copy_in"]) == 20  # 20 to 30 and 40 to 50
    assert dict(kinds[where]) == {"replay": [1, 3], "kernel": [1, 0], "memcpy": [1, 64]}
    assert "66.7 % of what copies take lies under compute." in report(events)
    assert report([]).startswith("no stream")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", help="a file of troupe timeline, or the folder with the programs")
    parser.add_argument("--gpus", default="host:1")
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--self-test", action="store_true")
    a = parser.parse_args()
    if a.self_test:
        return self_test()
    if not a.what:
        parser.error("give a file of troupe timeline, or the folder with the programs")
    if os.path.isdir(a.what):
        with tempfile.TemporaryDirectory(prefix="troupe-profile-") as folder:
            events = record(a.what, folder, ("train_classifier", "--epochs", "1000", "--device", "gpu:0"), a.seconds, ("--gpus", a.gpus))
    else:
        with open(a.what) as file:
            events = json.load(file)["traceEvents"]
    print(report(events))


if __name__ == "__main__":
    sys.exit(main())
