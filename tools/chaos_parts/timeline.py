"""What each death cost, from what was seen when.  Pure: times and lines in, figures out.

  death ──▸ noticed ──▸ runs ──▸ new step
            the program   "goes on    the first committed step that
            names the pid  from step" the program had not got before

A planned halt on the way (a node joins) counts to the last part.

TL-1  A step counts as new only after the job runs again: one that was on its way at the death does not.
"""

import math
import re
import statistics


class death:
    def __init__(self, at, pid, role, steps):
        self.at, self.pid, self.role = at, pid, role
        self.steps = steps  # committed at the death
        self.states = set()
        self.copies = None  # how many nodes could have every variable, with --replicas 1
        self.noticed = self.runs = self.new_step = self.from_step = None

    def seconds(self, name):
        value = getattr(self, name)
        return None if value is None else value - self.at

    @property
    def lost_steps(self):
        return None if self.from_step is None else max(0, self.steps - self.from_step)


GOES_ON = re.compile(r"goes on from step (\d+) \(epoch (\d+)\)")
NO_REPLICA = "variables have no replica until another node comes"
MOVES = re.compile(r"the work is spread anew|its work moves to other nodes")


def follow(deaths, said, times):
    """Fills in what came of each death. said: (time, line) of the program; times: of committed steps."""
    resumes = [(at, int(found.group(1))) for at, line in said if (found := GOES_ON.search(line))]
    for d in deaths:
        d.noticed = next((at for at, line in said if at >= d.at and f"(pid {d.pid})" in line), None)
        if d.noticed is None:
            continue
        d.runs, d.from_step = next((r for r in resumes if r[0] >= d.noticed), (None, None))
        if d.runs is not None:
            d.new_step = next((t for t in times if t > d.runs), None)


def lost_by_moves(said, times):
    """Committed steps that planned halts went back behind."""
    lost = 0
    for t, seconds in moves(said):
        line = next(line for u, line in said if u >= t + seconds and GOES_ON.search(line))
        lost += max(0, sum(at <= t for at in times) - int(GOES_ON.search(line).group(1)))
    return lost


def moves(said):
    """(when it was said, seconds until the job ran again) of planned halts: a node has joined or leaves."""
    out = []
    for t, line in said:
        if MOVES.search(line):
            runs = next((u for u, other in said if u >= t and GOES_ON.search(other)), None)
            if runs is not None:
                out.append((t, runs - t))
    return out


def is_in_recovery(at, deaths, said):
    """Whether the job was between a death and running again at that time."""
    for d in deaths:
        if d.at < at and d.noticed is not None:
            runs = next((t for t, line in said if t >= d.noticed and GOES_ON.search(line)), math.inf)
            if at < runs:
                return True
    return False


def copies_at(at, deaths, said, times):
    """On how many nodes each variable was at that time, with --replicas 1.

    After a death it is on one, until a step was committed that needed the new copies; a planned halt takes none away.
    """
    if any(d.at < at < d.noticed for d in deaths if d.noticed is not None):  # who held nothing is not spoken of
        return 1
    copies, is_failed, is_alone, is_told = 2, False, False, False
    for t, line in sorted([x for x in said if x[0] <= at] + [(t, None) for t in times if t <= at], key=lambda x: x[0]):
        if line is None:
            copies = 2 if not is_failed and not is_alone else copies
        elif ": died: " in line:
            copies, is_failed = 1, True
        elif NO_REPLICA in line:
            is_told = True
        elif GOES_ON.search(line):
            is_failed, is_alone, is_told = False, is_told, False
            copies = 1 if is_alone else copies
    return copies


def is_in_move(at, said):
    """Whether the job was between a planned halt (a node joins or leaves) and running again."""
    return any(t < at < t + seconds for t, seconds in moves(said))


def gaps(times):
    return [b - a for a, b in zip(times, times[1:])]


def longest_gap(times):
    return max(gaps(times), default=0.0)


def quantile(values, q):
    """The nearest rank; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def spread(values):
    """{"n", "p50", "p99", "max"}, in the unit of the values."""
    values = [v for v in values if v is not None]
    if not values:
        return {"n": 0, "p50": None, "p99": None, "max": None}
    return {"n": len(values), "p50": statistics.median(values), "p99": quantile(values, 0.99), "max": max(values)}
