"""The scenarios beside kills: a death every minute, a frozen node, nodes that come and go, the program itself, leaving in good order."""

import math
import os
import signal
import time

import timeline
import training
from kills import look
from stage import HANG, broken, harness, stage
from training import JOB


def epochs_for(seconds, data, options, step=0.005):
    """Long enough for that many seconds, if a step takes no less than `step`."""
    return options.epochs or max(3, math.ceil(seconds / step / (training.samples_of(data) // 128 // training.WORKERS)))


def holder(s, kind, spare=()):
    """A node that holds a worker or a shard, and nothing else where there is such a node."""
    seen = look(s)
    nodes = [n for n in s.living() if n not in spare]
    for wanted in (kind, "both"):
        for n in nodes:
            if seen.role_of(n) == wanted:
                return n
    raise broken(f"no node holds a {kind}")


# --- minute -----------------------------------------------------------------------------------------------------------

def minute(options, data, refs, rng, say):
    """A death every `--every` seconds, each node started again after 5 s."""
    every = options.checkpoint_every or "5s"
    epochs = epochs_for(options.seconds * 2, data, options, 0.002)
    deaths = []
    with stage(options) as s:
        s.start_nodes(3)
        s.begin_training(*training.flags(options, data, epochs, s.path("checkpoints"), None if every == "none" else every))
        s.wait_commits(1)
        began = s.commits.times[0]
        end = began + options.seconds
        while True:
            next_one = began + options.every * (len(deaths) + 0.5)
            if next_one > end - 5:
                break
            s.pause(max(0.0, next_one - time.monotonic()))
            kind = ("worker", "shard")[len(deaths) % 2]
            node = holder(s, kind)
            steps = s.commits.count()
            d = timeline.death(s.kill(node), node.pid, kind, steps)
            d.states = {"any moment"}
            deaths.append(d)
            s.start_later(5)
            s.wait_for("a new step after the death", lambda: timeline.follow(deaths, s.said(), s.commits.times) or d.new_step is not None
                       or not s.training.is_running(), HANG)
            if not s.training.is_running():
                raise broken(f"the training ended: {s.training.tail()}")
            say(f"death {len(deaths)} ({kind}): new step after {d.seconds('new_step') * 1e3:.0f} ms, {d.lost_steps} steps lost",
                (d.at - began) / options.seconds)
        s.pause(max(0.0, end - time.monotonic()))
        steps = s.commits.count()
        wall = time.monotonic() - began
        s.training.send(signal.SIGINT)
        s.training.wait()
        training.check_losses(s.commits, refs.get(math.ceil(s.commits.count() / (training.samples_of(data) // 128 // training.WORKERS))))
        s.check_survivors()
        times = s.commits.times[:steps]
    gaps = timeline.gaps(times)
    calm = [b - a for a, b in zip(times, times[1:]) if not any(d.at - 1 <= b <= d.at + 10 for d in deaths)]
    median = timeline.quantile(calm or gaps, 0.5)
    mean = sum(calm) / len(calm) if calm else None
    return {"deaths": deaths, "wall_seconds": wall, "committed_steps": steps, "median_step_ms": median * 1e3,
            "effective_ratio": steps * median / wall, "mean_calm_step_ms": mean and mean * 1e3,
            "effective_ratio_of_mean": mean and steps * mean / wall, "longest_pause_seconds": timeline.longest_gap(times)}


# --- freeze -----------------------------------------------------------------------------------------------------------

def freeze(options, data, refs, rng, say, kind):
    """A node that holds a worker or a shard stands still for --seconds, and wakes up in a cluster that has gone on without it."""
    epochs = epochs_for(options.seconds + 10, data, options)
    every = options.checkpoint_every or "1s"
    reference = refs.get(epochs)
    with stage(options) as s:
        s.start_nodes(3)
        s.begin_training(*training.flags(options, data, epochs, s.path("checkpoints"), None if every == "none" else every))
        s.wait_commits(rng.randrange(50, 200))
        node = holder(s, kind)
        before = member(s, node)
        d = timeline.death(time.monotonic(), node.pid, kind, s.commits.count())
        node.send(signal.SIGSTOP)
        say(f"froze {before['name']} (pid {node.pid}), which holds a {kind}")
        s.pause(options.seconds)
        steps_frozen = s.commits.count()
        woken = time.monotonic()
        node.send(signal.SIGCONT)
        after = s.wait_for("the woken node is a member again", lambda: (m := member(s, node, [n for n in s.living() if n is not node][0]))
                           and m["id"] != before["id"] and m, HANG, 0.02)
        back = time.monotonic() - woken
        say(f"woke up and is {after['name']} (incarnation {after['incarnation']}) after {back * 1e3:.0f} ms")
        if after["incarnation"] <= before["incarnation"] or after["name"] == before["name"]:
            raise broken(f"the woken node has its old life: {before} and {after}")
        training.finish(s, reference)
        if not node.is_running():
            raise broken(f"the woken node ended with {node.process.returncode}")
        training.check_losses(s.commits, reference)
        timeline.follow([d], s.said(), s.commits.times)
        others = [n for n in s.look("nodes") if n["kind"] == "node" and n["pid"] != node.pid and n["state"] == "alive"]
        if any(n["incarnation"] != 1 for n in others):
            raise broken(f"a node that was not frozen has joined anew: {others}")
        events = [e["text"] for e in s.look("events") if before["name"] in e["text"] or after["name"] in e["text"] or "fence" in e["text"]]
        return {"kind": kind, "noticed_seconds": d.seconds("noticed"), "runs_seconds": d.seconds("runs"), "new_step_seconds": d.seconds("new_step"),
                "lost_steps": d.lost_steps, "steps_while_frozen": steps_frozen - d.steps, "back_seconds": back, "before": before["name"],
                "after": after["name"], "incarnation": after["incarnation"], "events": events[-12:]}


def member(s, node, through=None):
    """The newest life of that process that is listed as alive."""
    found = [n for n in s.look("nodes", through, "500ms") or [] if n["pid"] == node.pid and n["state"] == "alive"]
    return max(found, key=lambda n: n["incarnation"]) if found else None


# --- elastic ----------------------------------------------------------------------------------------------------------

def elastic(options, data, refs, rng, say):
    """1 -> 3 -> 2 nodes within one epoch of the data; the same bits as on one node, and each sample used once."""
    batch = 16
    per_epoch = training.samples_of(data) // batch // training.WORKERS
    epochs = options.epochs or max(3, math.ceil(4000 / per_epoch))
    reference = refs.get(epochs, batch)
    with stage(options) as s:
        s.lease = "30s"  # nobody is stopped
        s.start_nodes(1)
        first = s.begin_training(*training.flags(options, data, epochs, batch=batch))
        alone = training.finish(s, reference)
        training.check_losses(s.commits, reference)
        say(f"on one node: {first.commits.count()} steps, {alone['weights_hash']}")
        s.begin_training(*training.flags(options, data, epochs, batch=batch))
        seen = grow_and_shrink(s, per_epoch, rng, say)
        result = training.finish(s, reference)
        training.check_losses(s.commits, reference)
        s.check_survivors()
        times = s.commits.times
        return seen | pauses(seen["changes"], times, per_epoch) | {
                "weights_hash": result["weights_hash"], "on_one_node": alone["weights_hash"], "recoveries": result["recoveries"],
                "redone_steps": result["redone_steps"], "committed_steps_lost": timeline.lost_by_moves(s.said(), times),
                "median_step_ms": timeline.quantile(timeline.gaps(times), 0.5) * 1e3, "ledger": ledger(options, rng, say)}


def ledger(options, rng, say):
    """The same within the only epoch of a training that counts the uses of each sample; None where its program was not built."""
    if not os.access(os.path.join(harness.BIN, "sample_ledger"), os.X_OK):
        return None
    with stage(options) as s:
        s.lease = "30s"  # nobody is stopped
        s.start_nodes(1)
        data, steps = training.make_ledger_data(s), 64 * 64 // training.WORKERS
        # It may be over before two nodes have started, on a machine that has other things to do: so it waits for them.
        joined, left = os.path.join(data, "joined"), os.path.join(data, "left")
        flags = ["--name", training.JOB, "--data", data, "--workers", training.WORKERS, "--shards", training.SHARDS, "--columns", 64,
                 "--hold", f"{steps // 2}:{joined}", "--hold", f"{steps * 3 // 4}:{left}"]
        s.begin_training(*flags, *(["--replicas", options.replicas] if options.replicas else []), program="sample_ledger")
        seen = grow_and_shrink(s, steps, rng, say, joined, left)
        s.wait_for("the ledger's training ends", lambda: not s.training.is_running(), 600)
        code = s.training.wait()
        if code != 0:
            raise broken(f"samples were not used once each: {s.training.tail()}")
        counted = s.json_of(s.training)
        say(f"each of {counted['samples']} samples was used once")
        s.check_survivors()
        return counted | {"changes": [(what, step) for what, _, step in seen["changes"]], "steps": s.commits.count()}


def grow_and_shrink(s, per_epoch, rng, say, joined_file=None, left_file=None):
    """While a training goes on over one node: two nodes join, and one of them is asked to leave when it has got work. The training may wait for these
    files, which are made when they have."""
    def tell(file):
        if file:
            open(file, "w").close()

    changes = []
    s.wait_commits(int(per_epoch * rng.uniform(0.1, 0.2)))
    changes.append(("2 nodes join", time.monotonic(), s.commits.count()))
    joined = [s.start_node(), s.start_node()]
    s.wait_living(3)
    problem = {}
    try:
        s.wait_for("the work is on three nodes", lambda: len(look(s).roles) == 3 or not s.training.is_running(), 3)
    except broken as e:
        problem = {"broken": f"a node that has joined gets no work: {e}"}
        say(f"BROKEN: {problem['broken']}")
    tell(joined_file)
    s.wait_commits(s.commits.count() + int(per_epoch * 0.1))
    if not s.training.is_running():
        raise broken(f"the training ended too early: {s.training.tail()}")
    node = rng.choice([n for n in joined if look(s).role_of(n) != "none"])
    changes.append((f"pid {node.pid} leaves", time.monotonic(), s.commits.count()))
    s.asked_to_leave.add(node.pid)
    node.send(signal.SIGTERM)
    code = node.wait()
    tell(left_file)
    if code != 0:
        raise broken(f"the node that was asked to leave ended with {code}: {node.tail()}")
    return problem | {"changes": changes, "left_after_seconds": time.monotonic() - changes[-1][1]}


def pauses(changes, times, per_epoch):
    """The longest pause between committed steps: of all, and from each change until the next."""
    marks = [c[1] for c in changes] + [math.inf]
    parts = []
    for (what, begin, step), end in zip(changes, marks[1:]):
        near = [(b - a) for a, b in zip(times, times[1:]) if b >= begin and a < end]
        parts.append({"what": what, "step": step, "epoch": 1 + step // per_epoch, "longest_pause_seconds": max(near, default=0.0)})
    return {"longest_pause_seconds": timeline.longest_gap(times), "changes": parts}


# --- program ----------------------------------------------------------------------------------------------------------

def program(options, data, refs, rng, say):
    """The program that owns the job is killed and started again, `--kills` times."""
    kills = options.kills
    every = options.checkpoint_every or "1s"
    epochs = epochs_for(4 * kills + 3, data, options)
    reference = refs.get(epochs)
    times = []
    with stage(options) as s:
        s.start_nodes(3)
        flags = training.flags(options, data, epochs, s.path("checkpoints"), every)
        s.begin_training(*flags)
        told = 0
        for i in range(kills):
            s.wait_commits(1)
            s.pause(rng.uniform(1.5, 3.5))
            if not s.training.is_running():
                break
            died = time.monotonic()
            s.training.send(signal.SIGKILL)
            s.training.process.wait()
            s.pause(0.05)
            told = last_step(s, told)
            s.begin_training(*flags, "--resume")
            s.wait_for("the program goes on", lambda: s.commits.count() > 0 or not s.training.is_running())
            if s.commits.count() == 0:
                raise broken(f"the program that was started again ended: {s.training.tail()}")
            first = s.commits.steps[0]
            again = s.commits.times[0] - died
            s.wait_for("a new step", lambda: s.commits.count() > told - first or not s.training.is_running())
            new = s.commits.times[told - first] - died if s.commits.count() > told - first else None
            times.append({"to_first_step_seconds": again, "to_new_step_seconds": new, "lost_steps": told - first})
            say(f"program killed at step {told}: goes on from step {first} after {again * 1e3:.0f} ms, new step after {new and new * 1e3:.0f} ms")
        training.finish(s, reference)
        for log in s.logs:
            if log.count():
                training.check_losses(log, reference, log.steps[0])
        s.check_survivors()
        return {"kills": times}


def last_step(s, told):
    return max([told] + [log.steps[-1] + 1 for log in s.logs if log.count()])


# --- leave ------------------------------------------------------------------------------------------------------------

def leave(options, data, refs, rng, say):
    """Nodes are asked to leave (SIGTERM), `--kills` of them; a new one comes after each."""
    leaves = options.kills
    epochs = epochs_for(3 * leaves + 3, data, options)
    reference = refs.get(epochs)
    told = []
    with stage(options) as s:
        s.start_nodes(3)
        s.begin_training(*training.flags(options, data, epochs))
        s.wait_commits(50)
        for i in range(leaves):
            s.wait_living(3)
            s.pause(rng.uniform(0.3, 1.2))
            if not s.training.is_running():
                break
            kind = ("worker", "shard")[i % 2]
            node = holder(s, kind)
            s.asked_to_leave.add(node.pid)
            at = time.monotonic()
            node.send(signal.SIGTERM)
            code = node.wait(40)
            if code != 0:
                raise broken(f"{node} was asked to leave and ended with {code}: {node.tail()}")
            took = time.monotonic() - at
            s.start_later(rng.uniform(0, 1))
            if not s.wait_commits(s.commits.count() + 5):
                break
            pause = max((b - a for a, b in zip(s.commits.times, s.commits.times[1:]) if b >= at), default=0.0)
            told.append({"kind": kind, "seconds": took, "pause_seconds": pause})
            say(f"a {kind}'s node left within {took * 1e3:.0f} ms; longest pause {pause * 1e3:.0f} ms", len(told) / leaves)
        result = training.finish(s, reference)
        training.check_losses(s.commits, reference)
        s.check_survivors()
        lost = timeline.lost_by_moves(s.said(), s.commits.times)
        if result["recoveries"] != 0 or lost != 0:
            raise broken(f"leaving in good order cost {result['recoveries']} recoveries and {lost} committed steps: {s.training.tail()}")
        # Steps that were in flight when a node left or its successor came: begun, not committed, made again.
        return {"leaves": told, "recoveries": result["recoveries"], "committed_steps_lost": lost,
                "in_flight_steps_made_again": result["redone_steps"], "planned_halts": len(timeline.moves(s.said()))}
