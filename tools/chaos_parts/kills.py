"""Nodes are killed one after the other, at moments that a seed draws and in states of the protocol that are aimed at."""

import signal
import time

import protocol_state
import timeline
import training
from stage import HANG, broken, stage
from training import JOB, WORKERS

TURNS = ["worker", "shard", "recovery", "worker", "shard"]  # again and again: 2 in 5 hit a worker, 2 a shard, 1 a recovery
STILL = 0.025  # seconds that the others have to come to a rest once the victim stands still
SETTLED = 2.0  # seconds after which a node that listens should have got work
SLOW = 2.0     # seconds without a step that are told in full
AGAIN = [0.015, 0.03, 0.12]  # seconds within which a second death follows: within a recovery from copies, or about one from a checkpoint
TRIES = 12     # stops of a victim until it is caught in the state that is aimed at
EPOCHS_PER_KILL = 1.5
AIMS = {"worker": ["pull", "push", "commit", "checkpoint"], "shard": ["pull", "push", "apply", "checkpoint"],
        "both": ["pull", "push", "commit", "checkpoint"]}  # of what can be seen: VI-1


class look:
    """Who runs what, at one moment."""

    def __init__(self, s):
        nothing = {"actors": [], "nodes": []}
        answer = s.wait_for("the job's actors are listed", lambda: self._ask(s) or (nothing if not s.training.is_running() else None), pause=0.02)
        self.actors = answer["actors"]
        self.names = {n["pid"]: n["name"] for n in answer["nodes"] if n["state"] == "alive"}
        self.roles = protocol_state.roles_of(self.actors, JOB)
        now = time.monotonic()
        self.idle = [n for n in s.living() if now - n.times["out"][0] > SETTLED and n.pid in self.names and self.role_of(n) == "none"]
        self.edges = protocol_state.gradient_edges(self.actors, JOB, WORKERS)

    def _ask(self, s):
        answer = s.look("status")
        return answer if answer and protocol_state.roles_of(answer["actors"], JOB) else None

    def role_of(self, node):
        mine = self.roles.get(self.names.get(node.pid), {"workers": (), "shards": ()})
        if mine["workers"] and mine["shards"]:
            return "both"
        return "worker" if mine["workers"] else "shard" if mine["shards"] else "none"


class killing:
    """One run."""

    def __init__(self, s, options, rng, hits, say, every):
        self.s, self.options, self.rng, self.hits, self.say, self.every = s, options, rng, hits, say, every
        self.deaths = []
        self.looks = self.idle_looks = 0

    # --- whom ---------------------------------------------------------------------------------------------------------

    def choose(self, turn):
        seen = look(self.s)
        self.looks += 1
        self.idle_looks += bool(seen.idle)
        living = [n for n in self.s.living() if n.pid in seen.names]
        holders = [n for n in living if seen.role_of(n) in (turn, "both")]
        alone = [n for n in holders if seen.role_of(n) == turn]
        if not holders:
            return None, seen
        # Nodes that hold both are hit by one kill in three.
        return self.rng.choice(alone if alone and self.rng.random() < 0.67 else holders), seen

    # --- when ---------------------------------------------------------------------------------------------------------

    def aim(self, role):
        """The state that was hit least among those that such a node can be in; None: a plain kill, at any moment."""
        if self.rng.random() < 0.2:
            return None
        possible = [a for a in AIMS[role] if a != "checkpoint" or self.every]
        least = min(self.hits.get(a, 0) for a in possible)
        return self.rng.choice([a for a in possible if self.hits.get(a, 0) == least])

    def stop_in(self, wanted, node, seen):
        """Stops the node, until it stands still in the state that is wanted or often enough; what it is in."""
        for tried in range(TRIES):
            node.send(signal.SIGSTOP)
            self.s.pause(STILL)
            states = self.states(node, seen)
            if wanted in states or not self.s.training.is_running():
                break
            if tried + 1 < TRIES:
                node.send(signal.SIGCONT)
                self.s.pause(self.rng.uniform(0.005, 0.06))
        return states

    def await_cut(self):
        end = time.monotonic() + 3
        while not self.is_cutting() and time.monotonic() < end and self.s.training.is_running():
            self.s.tick()
            time.sleep(0.001)

    def is_cutting(self):
        return bool(self.every) and training.cut_in_progress(self.s.path("checkpoints")) is not None

    def states(self, node, seen):
        others = [n for n in self.s.living() if n is not node]
        actors = self.s.look("actors", through=others[0], timeout="60ms")
        states = {"unknown"}
        if actors and len({a["node"] for a in actors}) > len(others):  # with the program
            states = protocol_state.states_of(actors, JOB, seen.names[node.pid], seen.edges, WORKERS)
        return states | {"checkpoint"} if self.is_cutting() else states

    # --- the kill -----------------------------------------------------------------------------------------------------

    def strike(self, turn):
        """One death; None where the training has ended before."""
        s = self.s
        node, seen = self.choose(turn)
        if node is None or not s.training.is_running():
            return None
        role = seen.role_of(node)
        wanted = self.aim(role)
        if wanted == "checkpoint":  # at once: the others finish a cut within milliseconds
            self.await_cut()
            states = {"any moment"}
        else:
            states = self.stop_in(wanted, node, seen) if wanted else {"any moment"}
        return self.die(node, role, states)

    def strike_again(self):
        """One more death soon after the last one."""
        s = self.s
        s.pause(self.rng.uniform(0, self.rng.choice(AGAIN)))
        living = s.living()
        if len(living) < 2 or not s.training.is_running():
            return None
        return self.die(self.rng.choice(living), "after a death", {"any moment"})

    def die(self, node, role, states):
        s = self.s
        if not s.training.is_running():
            if node.is_running():
                node.send(signal.SIGCONT)
            return None
        steps = s.commits.count()
        at = s.kill(node)
        if self.is_cutting():
            states = (states - {"any moment"}) | {"checkpoint"}
        d = timeline.death(at, node.pid, role, steps)
        d.states = states
        s.start_later(self.rng.uniform(0, 2))
        self.deaths.append(d)
        for state in states:
            self.hits[state] = self.hits.get(state, 0) + 1
        return d

    def await_progress(self):
        """Until the job has got over all deaths so far. False: it has ended."""
        s, last = self.s, self.deaths[-1]

        def is_over():
            if not s.training.is_running():
                return True
            timeline.follow(self.deaths, s.said(), s.commits.times)
            unsettled = [d for d in self.deaths if d.new_step is None]
            # One that held nothing any more is not spoken of.
            quiet = all(d.noticed is None for d in unsettled)
            return not unsettled or (quiet and time.monotonic() > last.at + 1.5 and s.commits.count() > last.steps + 10)

        s.wait_for(f"a new step after the death of pid {last.pid} ({last.role}, {'/'.join(sorted(last.states))})", is_over, HANG)
        return s.training.is_running()

    def run(self, kills):
        s, i = self.s, 0
        if not s.wait_commits(self.rng.randrange(5, 60)):
            return
        while len(self.deaths) < kills:
            turn = TURNS[i % len(TURNS)]
            again = TURNS[(i + 1) % len(TURNS)] == "recovery" and len(self.deaths) + 1 < kills
            s.wait_living(3 if again else 2)
            s.pause(self.rng.uniform(0.1, 0.6))
            d = self.strike(turn)
            if d is None:
                if not s.training.is_running():
                    return
                s.pause(0.05)
                continue
            i += 1
            if again:
                self.strike_again()
                i += 1
            if not self.await_progress():
                return


def tell(say, d, number, total):
    ms = {name: f"{d.seconds(name) * 1e3:.0f}" if d.seconds(name) is not None else "-" for name in ("noticed", "runs", "new_step")}
    copies = "" if d.copies is None else f", copies on {d.copies} node{'s' * (d.copies > 1)}"
    say(f"kill {number}/{total}: {d.role} pid {d.pid} in {'/'.join(sorted(d.states))}{copies}: noticed {ms['noticed']}, runs {ms['runs']}, "
        f"new step {ms['new_step']} ms; lost {d.lost_steps if d.lost_steps is not None else '-'} steps", number / total)


def one_run(options, data, refs, rng, hits, say, kills, done, total):
    every = None if options.checkpoint_every == "none" else options.checkpoint_every or "1s"
    epochs = options.epochs or max(3, int(kills * EPOCHS_PER_KILL * training.steps_scale(data) + 0.5))
    reference = refs.get(epochs)
    with stage(options) as s:
        s.lease = "30s"  # a kill is noticed without it
        s.start_nodes(3)
        s.begin_training(*training.flags(options, data, epochs, s.path("checkpoints"), every))
        k = killing(s, options, rng, hits, say, every)
        began = time.monotonic()
        try:
            k.run(kills)
            result = training.finish(s, reference)
        finally:
            said = s.said()
            timeline.follow(k.deaths, said, s.commits.times)
            for i, d in enumerate(k.deaths):
                if timeline.is_in_recovery(d.at, k.deaths[:i], said):
                    d.states = (d.states - {"any moment"}) | {"recovery"}
                    hits["recovery"] = hits.get("recovery", 0) + 1
                elif timeline.is_in_move(d.at, said):
                    d.states = (d.states - {"any moment"}) | {"move"}
                    hits["move"] = hits.get("move", 0) + 1
                if options.replicas == "1":
                    d.copies = timeline.copies_at(d.at, k.deaths[:i], said, s.commits.times)
                tell(say, d, done + i + 1, total)
        training.check_losses(s.commits, reference)
        s.check_survivors()
        for d in k.deaths:
            if d.copies == 2 and d.lost_steps and not any(d.at < other.at < d.runs for other in k.deaths):
                raise broken(f"{d.lost_steps} steps were lost with pid {d.pid} ({d.role}, {'/'.join(sorted(d.states))}), although every variable had a "
                             f"copy:\n{slow_line(d, said, 2)}")
        if options.keep:
            with open(s.path("deaths"), "w") as f:
                f.writelines(f"{d.at:.6f} {d.pid} {d.role} {sorted(d.states)} {d.steps}\n" for d in k.deaths)
    slow = [slow_line(d, said) for d in k.deaths if d.runs is not None and d.seconds("runs") > SLOW]
    moves = [(t, seconds) for t, seconds in timeline.moves(said) if not any(t < d.at < t + seconds for d in k.deaths)]
    for t, seconds in moves:
        if seconds > SLOW:
            near = sorted([(at - t, line) for at, line in said if t - 3 <= at <= t + seconds + 0.1] +
                          [(d.at - t, f"KILL pid {d.pid} ({d.role})") for d in k.deaths if t - 3 <= d.at <= t + seconds])
            slow.append(f"a planned halt took {seconds:.2f} s\n" + "\n".join(f"  {at * 1e3:+8.0f} ms  {line}" for at, line in near))
    return {"deaths": k.deaths, "result": result, "seconds": time.monotonic() - began, "step": timeline.quantile(timeline.gaps(s.commits.times), 0.5),
            "slow": slow, "looks": k.looks, "idle_looks": k.idle_looks, "moves": [seconds for _, seconds in moves]}


def slow_line(d, said, before=0.1):
    lines = [f"  {(at - d.at) * 1e3:+8.0f} ms  {line}" for at, line in said if d.at - before <= at <= d.runs + 0.1]
    return f"pid {d.pid} ({d.role}, {'/'.join(sorted(d.states))}): runs again after {d.seconds('runs'):.2f} s\n" + "\n".join(lines)
