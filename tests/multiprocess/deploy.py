#!/usr/bin/env python3
"""What tools/deploy has, as far as one machine can try it (tests/debian.py tries the package, by hand): deploy.py BIN_FOLDER"""

import os
import re
import stat
import subprocess

import harness

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "deploy")

# An allocation of two machines, which are two loopback addresses.
STUBS = {
    "scontrol": "printf '127.0.0.1\\n127.0.0.2\\n'",
    "hostname": "echo ${STUB_HOST:-127.0.0.1}",
    "srun": """while [ "$1" != bash ]; do shift; done
pids=()
for host in 127.0.0.1 127.0.0.2; do STUB_HOST=$host "$@" & pids+=($!); done
trap 'kill "${pids[@]}" 2> /dev/null' TERM
for pid in "${pids[@]}"; do wait $pid || wait $pid; done""",
}


def text_of(*names):
    with open(os.path.join(DEPLOY, *names)) as f:
        return f.read()


class deploy(harness.cluster_test):
    def batch(self, *arguments):
        """troupe.slurm, in a folder of its own."""
        folder = self.path("stubs")
        os.makedirs(folder, exist_ok=True)
        for name, lines in STUBS.items():
            with open(os.path.join(folder, name), "w") as f:
                f.write("#!/bin/bash\n" + lines + "\n")
            os.chmod(os.path.join(folder, name), stat.S_IRWXU)
        environment = dict(self.environment, PATH=os.pathsep.join((folder, os.path.abspath(harness.BIN), self.environment["PATH"])), SLURM_JOB_ID=str(os.getpid()),
                           SLURM_JOB_NODELIST="two", TROUPE_PORT=str(self.free_port()), TROUPE_NODE_FLAGS="--gpus none --lease 30s")
        work = self.path("work")
        os.makedirs(work, exist_ok=True)
        p = harness.program(["bash", "-c", f"cd '{work}' && exec bash '{os.path.join(DEPLOY, 'troupe.slurm')}' \"$@\"", "slurm", *map(str, arguments)], environment)
        self.programs.append(p)
        p.code = p.wait(2 * harness.HANG)
        self.assertEqual(os.listdir(work), [], "the token is left behind")
        return p

    def free_port(self):
        node = self.start_node()
        port = int(self.address(node).rsplit(":", 1)[1])
        node.process.terminate()
        self.assertEqual(node.wait(), 0, node.tail())
        self.nodes.remove(node)
        return port

    def test_a_program_has_the_cluster_of_its_allocation(self):
        p = self.batch("train_classifier", "--workers", 2, "--epochs", 1, "--data", self.make_data(300, 100), "--json")
        self.assertEqual(p.code, 0, p.tail())
        self.assertIn("weights_hash", self.json_of(p))
        p = self.batch("train_classifier", "--no-such-flag")
        self.assertEqual(p.code, 2, p.tail())
        self.assertEqual(self.batch().code, 2)

    def test_what_the_files_run_is_there(self):
        known = subprocess.run([os.path.join(harness.BIN, "troupe-node"), "--help"], capture_output=True, text=True, timeout=harness.HANG, check=True).stdout
        for file in (("kubernetes.yaml",), ("systemd", "troupe-node@.service"), ("systemd", "node.conf"), ("troupe.slurm",)):
            for line in text_of(*file).splitlines():
                if "systemctl" in line:
                    continue
                if "troupe-node" not in line and "- --" not in line and "NODE_FLAGS=" not in line:
                    continue
                for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line.split("exec troupe-node")[-1]):
                    self.assertIn(flag, known, f"{file}: {line}")
        version = subprocess.run([os.path.join(harness.BIN, "troupe"), "version"], capture_output=True, text=True, timeout=harness.HANG, check=True).stdout.split()[1]
        for image in re.findall(r"troupe:([\w.]+)", text_of("kubernetes.yaml").replace("dns:troupe:7000", "")) + re.findall(r"-t troupe:([\w.]+)", text_of("Containerfile")):
            self.assertEqual(image, version)


if __name__ == "__main__":
    harness.main()
