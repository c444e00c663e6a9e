"""What is told at the end: a table of what ran, the slowest suites, the share of the compiler, and one line."""

import statistics


def table(runs):
    rows = {}
    for r in runs:
        row = rows.setdefault((r.suite.preset, r.suite.label), [0, 0, 0, 0, 0, 0.0, 0.0])
        cases, assertions = r.counts_kept
        row[0] += 1
        if r.result == "skipped":
            row[3] += 1
        else:
            row[1] += cases
            row[2] += assertions
        row[4] += r.result == "failed"
        row[5] += r.seconds
        row[6] += r.cpu
    order = {"release": 0, "debug": 1, "tsan": 2}
    lines = [f"{'preset':<9}{'label':<14}{'suites':>7}{'cases':>7}{'assertions':>12}{'skipped':>9}{'failed':>8}{'seconds':>9}{'of a core':>11}"]
    for (preset, label), (suites, cases, assertions, skipped, failed, seconds, cpu) in sorted(rows.items(), key=lambda r: (order[r[0][0]], r[0][1])):
        lines.append(f"{preset:<9}{label:<14}{suites:>7}{cases:>7}{assertions:>12}{skipped:>9}{failed:>8}{seconds:>9.1f}{cpu:>11.1f}")
    return lines


def slowest(runs, count=10):
    longest = sorted(runs, key=lambda r: -r.seconds)[:count]
    return [f"the {len(longest)} slowest suites:"] + [f"  {r.seconds:7.1f} s  ({r.cpu:.1f} s of a core)  {r.suite}" for r in longest]


def compiler(builds, test_cpu):
    lines = []
    total = sum(b.cpu for b in builds)
    for b in builds:
        hits, misses = b.cache()
        found = f", {hits} of {hits + misses} sources found in the cache" if hits + misses else ""
        lines.append(f"  {b.preset:<8} {b.state}: {b.seconds:6.0f} s, {b.cpu:6.0f} s of a core{found}")
    hits, misses = (sum(b.cache()[i] for b in builds) for i in (0, 1))
    share = f"{100 * total / max(total + test_cpu, 1e-9):.0f} % of all that was computed"
    cached = f"; the cache had {100 * hits / (hits + misses):.1f} % of {hits + misses} sources" if hits + misses else ""
    return [f"the compiler: {total:.0f} s of a core, {share}{cached}", *lines] if builds else []


def stress(runs):
    by = {}
    for r in runs:
        by.setdefault((r.suite.preset, r.suite.name), []).append(r)
    lines = [f"{'runs':>5}{'failed':>8}{'median s':>10}{'longest':>9}  suite"]
    for key, of in sorted(by.items(), key=lambda e: (-sum(r.result == "failed" for r in e[1]), -max(r.seconds for r in e[1]))):
        seconds = [r.seconds for r in of]
        lines.append(f"{len(of):>5}{sum(r.result == 'failed' for r in of):>8}{statistics.median(seconds):>10.1f}{max(seconds):>9.1f}  {' '.join(key)}")
    return lines


def span(seconds):
    return f"{int(seconds) // 60} min {int(seconds) % 60} s" if seconds >= 60 else f"{seconds:.1f} s"
