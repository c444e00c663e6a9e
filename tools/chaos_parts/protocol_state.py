"""What a stopped node was in the middle of, told from what all others then wait for.

Pure. While the victim stands still (SIGSTOP), the others go on until they wait for it; then the edges between them and it say how far
it had come. A send of ours counts what it sent and which credits came back (the victim's receiver has taken the item), a receive of
ours what came. One kill can hit several states at once, since each variable and each worker is in one of its own:

  pull        A worker of the victim lacks a version that another node's shard has sent; or a version of a shard of the victim has reached
              one reader and not another.
  push        A gradient that another node sent was not taken by the victim's shard; or of a worker of the victim some gradients of
              a step have come and others have not.
  apply       A shard of the victim has taken the step's gradients of all workers (all of them on other nodes), and no reader has the version
              that follows. (Its sending counts as well, until somebody has it.)
  commit      A worker of the victim has the versions of a step, and the program not its loss, which would commit the step before.
  compute     None of these: backward, or a gradient that its worker has not made yet.

VI-1  What cannot be seen is not claimed: edges inside the victim (its worker, its shard) have no say.
"""

import re

STATES = ["pull", "push", "apply", "commit", "compute", "checkpoint", "recovery", "move"]
VERSION = re.compile(r"^shard/\d+/(?P<variable>.+?)(?::\d+)?/(send|receive)/\d+$")


def roles_of(actors, job):
    """{node: {"workers": {0}, "shards": {"dense_1/bias"}}} of actors that have not ended."""
    roles = {}
    for a in actors:
        if a["job"] != job or a["state"] == "ended":
            continue
        mine = roles.setdefault(a["node"], {"workers": set(), "shards": set()})
        if a["kind"] == "shard":
            mine["shards"].add(re.sub(r"^shard/\d+/", "", a["name"]))
        if a["kind"] == "op" and (found := re.match(r"worker/(\d+)/", a["name"])):
            mine["workers"].add(int(found.group(1)))
    return {node: r for node, r in roles.items() if r["workers"] or r["shards"]}


def gradient_edges(actors, job, workers):
    """{name of the receive (or op, on the same node) that feeds a shard: (variable, worker)}, from a look at all nodes."""
    edges = {}
    for a in actors:
        if a["job"] == job and a["kind"] == "shard" and a["state"] != "ended":
            for p in a["ports"]:
                if p["name"].startswith("in") and int(p["name"][2:]) < workers:  # the ports behind are for variables that move
                    edges[p["peer"]] = (re.sub(r"^shard/\d+/", "", a["name"]), int(p["name"][2:]))
    return edges


class seen:
    """The edges between the victim and the others, as the others see them."""

    def __init__(self, actors, job, victim, edges):
        self.taken_gradients = {}  # variable: {worker: taken by the victim's shard}
        self.waits_to_be_taken = 0  # gradients that the victim's shards have not taken
        self.come_gradients = {}   # worker of the victim: [come, per variable]
        self.taken_versions = []   # by workers of the victim, per variable
        self.missing_versions = 0  # that they have not taken
        self.come_versions = {}    # variable of the victim: [come, per reader]
        self.losses = {}           # worker of the victim: come
        for a in actors:
            if a["job"] != job or a["node"] == victim or a["state"] == "ended":
                continue
            if a["kind"] == "send":
                self._send(a, victim, edges)
            if a["kind"] == "receive":
                self._receive(a, victim)

    def _send(self, a, victim, edges):
        out = next((p for p in a["ports"] if p["name"] == "out0"), None)
        if out is None or out["peer_node"] != victim:
            return
        waits = out["credits_max"] - out["credits"]
        taken = a["messages_out"] - waits
        if VERSION.match(a["name"]):
            self.taken_versions.append(taken)
            self.missing_versions += waits
        elif out["peer"] in edges:
            variable, worker = edges[out["peer"]]
            self.taken_gradients.setdefault(variable, {})[worker] = taken
            self.waits_to_be_taken += waits

    def _receive(self, a, victim):
        into = next((p for p in a["ports"] if p["name"] == "in0"), None)
        out = next((p for p in a["ports"] if p["name"] == "out0"), None)
        if into is None or into["peer_node"] != victim or out is None or out["peer"] == "variables":
            return
        come = a["messages_in"]
        if found := VERSION.match(a["name"]):
            self.come_versions.setdefault(found["variable"], []).append(come)
        elif found := re.match(r"worker/(\d+)/", a["name"]):
            worker = int(found.group(1))
            if out["peer"] == "loss":
                self.losses[worker] = come
            else:
                self.come_gradients.setdefault(worker, []).append(come)


def states_of(actors, job, victim, edges, workers):
    """`actors`: from all but the victim. `edges`: gradient_edges() from before. `workers`: how many the job has."""
    s = seen(actors, job, victim, edges)
    states = set()
    if s.missing_versions or any(min(c) != max(c) for c in s.come_versions.values()):
        states.add("pull")
    if s.waits_to_be_taken or any(min(c) != max(c) for c in s.come_gradients.values()):
        states.add("push")
    for variable, come in s.come_versions.items():
        taken = s.taken_gradients.get(variable, {})
        # Version 0 came first: after n gradients of each worker, n + 1 versions have been made.
        if len(taken) == workers and min(taken.values()) >= max(come):
            states.add("apply")
    if s.losses and s.taken_versions and min(s.taken_versions) > min(s.losses.values()):
        states.add("commit")
    return states or {"compute"}
