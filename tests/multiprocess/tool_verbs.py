#!/usr/bin/env python3
"""What the tool offers beside questions: contexts, completion, lists that are watched, waits for jobs: tool_verbs.py BIN_FOLDER"""

import json
import os
import shutil
import signal
import subprocess

import harness


class tool_verbs(harness.cluster_test):
    def run_tool(self, *arguments, environment=(), code=0):
        """Its standard output, without a flag that says where the cluster is."""
        p = harness.program([os.path.join(harness.BIN, "troupe"), *map(str, arguments)], dict(self.environment, **dict(environment)))
        self.programs.append(p)
        self.assertEqual(p.wait(), code, f"troupe {arguments}: {p.tail()}")
        return "\n".join(p.lines["out"]), "\n".join(p.lines["err"])

    def test_a_cluster_is_found_by_context_and_by_environment(self):
        node = self.start_nodes(1)[0]
        self.run_tool("list", "nodes", code=3)  # the cluster of no name
        out, _ = self.run_tool("list", "nodes", "--json", environment={"TROUPE_CLUSTER": self.cluster})
        self.assertEqual(len(json.loads(out)), 1)
        out, _ = self.run_tool("list", "nodes", "--json", environment={"TROUPE_CLUSTER": self.cluster, "TROUPE_JOIN": self.address(node)})
        self.assertEqual(len(json.loads(out)), 1)
        self.run_tool("context", "set", "lab", "--cluster", self.cluster)
        self.run_tool("context", "set", "gone", "--cluster", "nobody-has-it")
        self.run_tool("list", "nodes", code=3)  # none is in use
        self.run_tool("list", "nodes", "--context", "lab")
        self.run_tool("list", "nodes", environment={"TROUPE_CONTEXT": "lab"})
        self.run_tool("context", "use", "lab")
        self.run_tool("list", "nodes")
        _, err = self.run_tool("list", "nodes", "--context", "gone", code=3)
        self.assertIn("context 'gone'", err)
        _, err = self.run_tool("list", "nodes", "--context", "lap", code=2)
        self.assertIn("did you mean lab?", err)
        self.run_tool("list", "nodes", "--cluster", "nobody-has-it", code=3)
        self.run_tool("context", "remove", "lab")
        self.run_tool("list", "nodes", code=3)

    def test_bash_completes_verbs_and_names_of_the_cluster(self):
        bash = shutil.which("bash")
        if bash is None:
            self.skipTest("bash is not here")
        self.start_nodes(1)
        name = self.list("nodes")[0]["name"]
        script, _ = self.run_tool("completion", "bash")
        # As bash calls it: the line, and its words split at ':' and '=', too.
        ask = r"""
complete_line() {
  COMP_LINE="$1"; COMP_WORDS=(); COMPREPLY=()
  local part
  for part in $1; do
    while [[ $part == *[:=]* ]]; do
      local before="${part%%[:=]*}" rest
      rest="${part#"$before"}"
      [[ -n $before ]] && COMP_WORDS+=("$before")
      COMP_WORDS+=("${rest:0:1}"); part="${rest:1}"
    done
    [[ -n $part ]] && COMP_WORDS+=("$part")
  done
  [[ $1 == *' ' ]] && COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _troupe; printf '%s\n' "${COMPREPLY[@]}"
}
"""
        environment = dict(self.environment, PATH=harness.BIN + os.pathsep + self.environment.get("PATH", ""))

        def offers(line):
            p = harness.program([bash, "--norc", "-c", script + ask + f"complete_line '{line}'"], environment)
            self.programs.append(p)
            self.assertEqual(p.wait(), 0, p.tail())
            return p.lines["out"]

        self.assertEqual(offers("troupe stat"), ["status"])
        self.assertIn("--watch", offers("troupe list --w"))
        self.assertEqual(offers("troupe wait job=d"), ["done"])
        self.assertIn(name, offers(f"troupe --cluster {self.cluster} --join {self.address(self.nodes[0])} show node "))
        self.assertIn(name, offers(f"troupe --cluster={self.cluster} show node "))
        self.assertEqual(offers("troupe --cluster nobody-has-it show node "), [""])

    def test_a_list_is_watched_until_its_pipe_is_closed(self):
        self.start_nodes(1)
        p = subprocess.Popen([os.path.join(harness.BIN, "troupe"), "--cluster", self.cluster, "list", "nodes", "--watch", "--interval", "100ms", "--json"],
                             env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            lines = [json.loads(p.stdout.readline()) for _ in range(3)]
            self.assertEqual([len(nodes) for nodes in lines], [1, 1, 1])
            self.assertLess(lines[0][0]["uptime_seconds"], lines[2][0]["uptime_seconds"])
            p.stdout.close()
            p.wait(timeout=60)
        finally:
            p.kill()
            p.wait()

    def test_a_job_is_waited_for_shown_and_listed_by_condition(self):
        self.start_nodes(2)
        program = self.start_training("--batch", 16, "--epochs", 1000)
        where = ("--cluster", self.cluster)
        self.run_tool("wait", "job=running", *where, "--timeout", "60s")
        jobs = self.list("jobs")
        name = jobs[0]["name"]
        out, _ = self.run_tool("show", "job", name, *where)
        self.assertIn("running", out)
        out, _ = self.run_tool("list", "jobs", "--filter", "state=running", "--filter", "workers>0", "--sort", "step:desc", "--json", *where)
        self.assertEqual([j["name"] for j in json.loads(out)], [name])
        self.until("some actor is busy", lambda: [a for a in json.loads(self.run_tool("top", name, "--limit", 3, "--json", *where)[0]) if a["busy_ratio"] > 0])
        out, _ = self.run_tool("top", *where)
        self.assertIn("ACTOR", out)
        _, err = self.run_tool("wait", "job=done", name, *where, "--timeout", "300ms", code=4)
        self.assertIn(f"{name} is running, not done", err)
        self.run_tool("job", "stop", name, *where)
        self.assertEqual(program.wait(), 0, program.tail())
        self.run_tool("wait", "job=stopped", name, *where)
        _, err = self.run_tool("wait", "job=done", name, *where, code=1)
        self.assertIn("will not be done any more", err)

    def test_a_dead_node_is_forgotten_and_a_living_one_is_not(self):
        kept, killed = self.start_nodes(2)
        names = {n["pid"]: n["name"] for n in self.list("nodes")}
        killed.send(signal.SIGKILL)
        killed.wait()
        self.nodes.remove(killed)
        state = lambda: {n["pid"]: n["state"] for n in self.list("nodes")}.get(killed.pid)
        self.until("the death is seen", lambda: state() == "dead")
        where = ("--cluster", self.cluster)
        _, err = self.run_tool("cluster", "forget", names[kept.pid], *where, code=1)
        self.assertIn("it lives", err)
        out, _ = self.run_tool("cluster", "forget", names[killed.pid], *where)
        self.assertIn("is forgotten", out)
        self.assertIsNone(state())
        self.run_tool("cluster", "forget", names[killed.pid], *where, code=6)


if __name__ == "__main__":
    harness.main()
