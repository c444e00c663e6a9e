#!/usr/bin/env python3
"""The package on a bare Debian 12, under systemd: install, three nodes, a training, a crash, stop, purge: debian.py PACKAGE.deb [--root FOLDER]

Run by hand, as root, on a machine with mmdebstrap and systemd-nspawn and a way to a Debian mirror (the one of this machine's apt). --root keeps the
bare system there, for the next time; without it one is made and removed (a minute).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap

LIMIT = 600  # seconds, of a container
FOLDERS = "/etc /usr /var/lib /run /opt /srv /home /lib /bin"

STEPS = textwrap.dedent(f"""\
    set -euxo pipefail
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C
    files() {{
      find {FOLDERS} -xdev -not -path '/var/lib/apt/*' -not -path '/var/lib/dpkg/*' -not -path '/run/systemd/*' -not -path '/run/udev/*' \\
        -not -path '/run/log/*' -not -path '/var/lib/systemd/*' -not -path '/run/credentials*' | LC_ALL=C sort
    }}
    files > /trial/before
    apt-get update -q
    apt-get install -q -y /trial/troupe.deb
    apt-get check
    as_service() {{ runuser -u troupe -- env XDG_RUNTIME_DIR=/run/troupe "$@"; }}

    systemctl enable --now troupe-node@a troupe-node@b troupe-node@c
    systemctl is-active troupe-node@a troupe-node@b troupe-node@c
    troupe --system wait nodes=3 --timeout 30s
    troupe --system list nodes
    systemctl status --no-pager 'troupe-node@*'

    as_service train_classifier --cluster default --workers 3 --epochs 1 --steps 200
    troupe --system list jobs
    troupe --system wait job=done --timeout 5s

    # A node that crashes comes back.
    kill -9 "$(systemctl show --property MainPID --value troupe-node@b)"
    troupe --system wait nodes=3 --timeout 30s
    # A job goes on while its nodes are stopped in good order.
    as_service train_classifier --cluster default --workers 2 --epochs 1 --steps 2000 --on-failure resume --checkpoint /var/lib/troupe/saved &
    training=$!
    troupe --system wait job=running --timeout 30s
    systemctl stop troupe-node@c
    wait $training
    [ "$(systemctl show --property Result --value troupe-node@c)" = success ]

    # What cannot work is not tried again and again, and says why.
    echo 'TROUPE_NODE_FLAGS=--no-such-flag' > /etc/troupe/d.conf
    ! systemctl start troupe-node@d
    sleep 3
    [ "$(systemctl show --property NRestarts --value troupe-node@d)" = 0 ]
    journalctl --unit troupe-node@d --no-pager | grep -- --no-such-flag

    systemctl stop 'troupe-node@*'
    ! pgrep -x troupe-node
    systemctl start troupe-node@a
    apt-get purge -q -y troupe
    apt-get autoremove -q -y --purge
    ! pgrep -u troupe
    ! getent passwd troupe
    ! systemctl list-unit-files | grep troupe
    files > /trial/after
    set +x
    comm -13 /trial/before /trial/after > /trial/new
    echo "left behind:"
    # Caches that others keep about packages that were there, and what booting goes on to write.
    grep -v -e '/var/lib/dbus' -e '/ld.so.cache' -e '/var/lib/systemd' -e 'mandb' -e '/etc/machine-id' -e '/run/utmp' -e '/run/agetty' /trial/new | tee /trial/left || true
    [ ! -s /trial/left ]
    echo ALL-WELL
""")

UNIT = textwrap.dedent("""\
    [Unit]
    After=multi-user.target
    [Service]
    Type=oneshot
    ExecStart=/bin/bash -c 'bash /trial/steps > /trial/output 2>&1; systemctl poweroff --no-block'
    [Install]
    WantedBy=trial.target
""")


def make_root(folder):
    with open("/etc/apt/sources.list.d/debian.sources") as f:
        mirror = next(line.split()[1] for line in f if line.startswith("URIs:"))
    subprocess.run(["mmdebstrap", "--variant=minbase", "--include=systemd,systemd-sysv,dbus,procps", "bookworm", folder, mirror], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package")
    parser.add_argument("--root")
    options = parser.parse_args()
    for program in ("mmdebstrap", "systemd-nspawn"):
        if shutil.which(program) is None:
            sys.exit(f"debian.py: {program} is missing: apt-get install mmdebstrap systemd-container")
    with tempfile.TemporaryDirectory(prefix="troupe-debian-") as own:
        bare = options.root or os.path.join(own, "bare")
        if not os.path.exists(os.path.join(bare, "etc/debian_version")):
            make_root(bare)
        root = os.path.join(own, "root")
        subprocess.run(["cp", "-a", bare, root], check=True)
        trial = os.path.join(root, "trial")
        os.mkdir(trial)
        shutil.copy(options.package, os.path.join(trial, "troupe.deb"))
        with open(os.path.join(trial, "steps"), "w") as f:
            f.write(STEPS)
        with open(os.path.join(root, "etc/systemd/system/trial.service"), "w") as f:
            f.write(UNIT)
        wants = os.path.join(root, "etc/systemd/system/multi-user.target.wants")
        os.makedirs(wants, exist_ok=True)
        os.symlink("/etc/systemd/system/trial.service", os.path.join(wants, "trial.service"))
        try:
            subprocess.run(["systemd-nspawn", "--quiet", "-D", root, "--boot", "--register=no", "--keep-unit", "-M", f"troupe{os.getpid()}"], stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT, check=False)
        except subprocess.TimeoutExpired:
            print(f"debian.py: it did not end within {LIMIT} s")
        with open(os.path.join(trial, "output"), errors="replace") as f:
            text = f.read()
        print(text)
        sys.exit(0 if text.rstrip().endswith("ALL-WELL") else 1)


if __name__ == "__main__":
    main()
