"""What a run of chaos prints: progress on stderr, a summary on stdout."""

import os
import sys

import protocol_state
import timeline


class progress:
    """A line for each thing that is said; on a terminal a bar below them."""

    def __init__(self, title):
        self.title, self.is_terminal, self.bar = title, sys.stderr.isatty(), ""

    def say(self, line, ratio=None):
        self._erase()
        print(f"chaos: {line}", file=sys.stderr)
        if ratio is not None and self.is_terminal:
            width = max(10, min(40, os.get_terminal_size(2).columns - len(self.title) - 12))
            full = int(width * min(1.0, ratio))
            self.bar = f"{self.title} [{'#' * full}{' ' * (width - full)}] {ratio:4.0%}"
        if self.bar:
            print(self.bar, end="", file=sys.stderr)
        sys.stderr.flush()

    def _erase(self):
        if self.bar:
            print("\r\033[K", end="", file=sys.stderr)

    def end(self):
        self._erase()
        self.bar = ""


def summarize(options, results):
    bad = [f"run {i + 1}: {r['broken']}" for i, r in enumerate(results) if "broken" in r]
    good = [r for r in results if len(r) > 1 or "broken" not in r]
    out = {"scenario": options.scenario, "seed": options.seed, "runs": len(results), "broken": bad}
    if options.scenario == "kills":
        out.update(of_kills(good))
    elif options.scenario == "minute":
        out.update({"run": [{k: v for k, v in r.items() if k != "deaths"} | {"deaths": len(r["deaths"])} for r in good]})
        out["figures"] = figures([d for r in good for d in r["deaths"]])
    else:
        out["run"] = good
    return out


def of_kills(runs):
    deaths = [d for r in runs for d in r["deaths"]]
    roles = {}
    for d in deaths:
        roles[d.role] = roles.get(d.role, 0) + 1
    groups = {"all": deaths, "worker": [d for d in deaths if d.role == "worker"], "shard": [d for d in deaths if d.role in ("shard", "both")],
              "after a death": [d for d in deaths if d.role == "after a death"]}
    for copies in (1, 2):
        if any(d.copies == copies for d in deaths):
            groups[f"copies on {copies}"] = [d for d in deaths if d.copies == copies]
    states = {s: sum(s in d.states for d in deaths) for s in [*protocol_state.STATES, "any moment", "unknown"]}
    return {"kills": len(deaths), "roles": roles, "states": states,
            "figures": {name: figures(group) for name, group in groups.items()},
            "recoveries": sum(r["result"]["recoveries"] for r in runs), "redone_steps": sum(r["result"]["redone_steps"] for r in runs),
            "moves_ms": timeline.spread([x * 1e3 for r in runs for x in r["moves"]]),
            "median_step_ms": timeline.spread([r["step"] * 1e3 for r in runs])["p50"], "slow": [line for r in runs for line in r["slow"]],
            "seconds": sum(r["seconds"] for r in runs), "looks": sum(r["looks"] for r in runs),
            "looks_with_an_idle_node": sum(r["idle_looks"] for r in runs)}


def figures(deaths):
    def ms(first, last):
        return timeline.spread([(getattr(d, last) - getattr(d, first)) * 1e3 for d in deaths if getattr(d, last) is not None])
    return {"noticed_ms": ms("at", "noticed"), "runs_again_ms": ms("at", "runs"), "redo_ms": ms("runs", "new_step"),
            "new_step_ms": ms("at", "new_step"),
            "lost_steps": timeline.spread([d.lost_steps for d in deaths])}


NAMES = {"noticed_ms": "death to noticed, ms", "runs_again_ms": "death to running again, ms", "redo_ms": "running again to new step, ms",
         "new_step_ms": "death to new step, ms", "lost_steps": "steps lost"}


def table_of(groups):
    lines = [f"{'':<32}{'kills of':<16}{'n':>5}{'p50':>9}{'p99':>9}{'max':>9}"]
    for key, name in NAMES.items():
        for group, f in groups.items():
            x = f[key]
            cells = "".join(f"{'-' if x[q] is None else format(x[q], '.0f'):>9}" for q in ("p50", "p99", "max"))
            lines.append(f"{name:<32}{group:<16}{x['n']:>5}{cells}")
            name = ""
    return lines


def flat(value, indent=0):
    lines = []
    for key, x in value.items():
        if isinstance(x, list) and x and isinstance(x[0], dict):
            for item in x:
                lines += [" " * indent + f"{key}:", *flat(item, indent + 2)]
        elif isinstance(x, dict):
            lines += [" " * indent + f"{key}:", *flat(x, indent + 2)]
        elif isinstance(x, list):
            lines += [" " * indent + f"{key}:", *(" " * (indent + 2) + str(item) for item in x)]
        else:
            lines.append(" " * indent + f"{key:<28}{format(x, '.3f') if isinstance(x, float) else x}")
    return lines


def text(summary):
    s = summary["scenario"]
    lines = [f"chaos {s}: {summary['runs']} runs, seed {summary['seed']}: {'BROKEN' if summary['broken'] else 'everything holds'}"]
    lines += summary["broken"]
    if s == "kills":
        if not summary["kills"]:
            return "\n".join(lines)
        lines.append(f"{summary['kills']} kills: " + ", ".join(f"{n} {role}" for role, n in sorted(summary["roles"].items())))
        lines.append("states hit (a kill may hit several): " + ", ".join(f"{state} {n}" for state, n in summary["states"].items()))
        lines += table_of(summary["figures"])
        m = summary["moves_ms"]
        if m["n"]:
            lines.append(f"{m['n']} planned halts for nodes that joined: p50 {m['p50']:.0f}, p99 {m['p99']:.0f}, max {m['max']:.0f} ms")
        lines.append(f"before {summary['looks_with_an_idle_node']} of {summary['looks']} kills a node that had listened for 2 s and more had no work")
        lines.append(f"{summary['recoveries']} recoveries, {summary['redone_steps']} steps of workers made again; "
                     f"median step {summary['median_step_ms']:.1f} ms; {summary['seconds']:.0f} s")
        lines += ["slow:"] * bool(summary["slow"]) + summary["slow"]
    else:
        for run in summary["run"]:
            lines += flat(run, 2)
        if "figures" in summary:
            lines += table_of({"all": summary["figures"]})
    return "\n".join(lines)
