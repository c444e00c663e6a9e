"""What runs: processes of a test, found by a mark in their environment; what they leave behind; where they hang.

PR_SET_CHILD_SUBREAPER makes this process the parent of those whose parent has ended, so that none is lost.
"""

import ctypes
import os
import signal
import subprocess
import time

MARK = "TROUPE_TEST"  # the environment variable that all processes of a test have
SHARED_FOLDERS = ("/tmp", "/dev/shm")


def adopt_orphans():
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def all_pids():
    return [int(p) for p in os.listdir("/proc") if p.isdigit()]


def environment_of(pid):
    pairs = (e.partition(b"=") for e in read(f"/proc/{pid}/environ").split(b"\0"))
    return {k.decode(errors="replace"): v.decode(errors="replace") for k, _, v in pairs}


def command_of(pid):
    return [a.decode(errors="replace") for a in read(f"/proc/{pid}/cmdline").split(b"\0")[:-1]]


def program_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def parent_of(pid):
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def state_of(pid):
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields[0].decode() if fields else "X"


def age_of(pid):
    """Seconds since it was started."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 20:
        return 0.0
    uptime = float(read("/proc/uptime").split()[0])
    return max(0.0, uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"))


def computed(pids):
    """Seconds of a core that they have used, with the children they have waited for."""
    ticks = 0
    for p in pids:
        fields = read(f"/proc/{p}/stat").rpartition(b")")[2].split()
        ticks += sum(int(f) for f in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def marked(mark):
    """Living processes whose environment has MARK=mark, wherever they have gone."""
    wanted = f"{MARK}={mark}".encode()
    return [p for p in all_pids() if wanted in read(f"/proc/{p}/environ").split(b"\0") and state_of(p) not in "ZX"]


def others_run(own):
    """Whether tests of another checkout, or by hand, run on this machine: programs that stand beside a source_folder.txt
    and have no mark that begins with `own`."""
    for p in all_pids():
        program = program_of(p)
        if program and os.path.exists(os.path.join(os.path.dirname(program), "source_folder.txt")):
            if not environment_of(p).get(MARK, "").startswith(own):
                return True
    return False


def descendants(root):
    children = {}
    for p in all_pids():
        children.setdefault(parent_of(p), []).append(p)
    found, todo = [], [root]
    while todo:
        mine = children.get(todo.pop(), [])
        found += mine
        todo += mine
    return found


def kill(pids):
    for p in pids:
        for number in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.kill(p, number)
            except OSError:
                pass


def one_line(pid, width=160):
    text = " ".join(command_of(pid)) or program_of(pid)
    return f"pid {pid} ({age_of(pid):.0f} s old): {text[:width]}"


def run_briefly(command, seconds, environment=None):
    """Its output, also where it does not end in time."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=seconds, env=environment)
        return done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as e:
        return (e.stdout or b"").decode(errors="replace") + f"\n({command[0]} did not end within {seconds} s)"
    except OSError as e:
        return f"({command[0]}: {e.strerror})"


def where_they_hang(pids, build_folder):
    """Of processes that hang: a backtrace of every thread, and what `troupe why` says of their clusters.

    Scripts are asked by SIGABRT, which Python answers with a traceback into their output (PYTHONFAULTHANDLER).
    """
    lines, asked = [], set()
    ours = [p for p in pids if program_of(p).startswith(os.path.abspath(build_folder) + os.sep)]
    tool = os.path.join(build_folder, "bin", "troupe")
    for p in ours:
        command, environment = command_of(p), environment_of(p)
        if "--cluster" not in command[:-1] or not os.path.exists(tool):
            continue
        cluster = command[command.index("--cluster") + 1]
        if cluster in asked:
            continue
        asked.add(cluster)
        lines.append(f"--- troupe why, cluster {cluster}")
        lines.append(run_briefly([tool, "--cluster", cluster, "why", "--timeout", "5s"], 15, environment))
    for p in ours[:8]:
        lines.append(f"--- backtraces of {one_line(p)}")
        out = run_briefly(["gdb", "--batch", "--nx", "-p", str(p), "-ex", "set width 200",
                           "-ex", "thread apply all backtrace 30"], 40)
        noise = ("[New LWP", "warning:", "[Thread debugging", "Using host libthread_db", "[Inferior", "Download")
        lines += [text for text in out.splitlines() if text and not text.startswith(noise)][:400]
    if len(ours) > 8:
        lines.append(f"... and {len(ours) - 8} more processes")
    for p in pids:
        if os.path.basename(program_of(p)).startswith("python"):
            try:
                os.kill(p, signal.SIGABRT)
            except OSError:
                pass
    if any(os.path.basename(program_of(p)).startswith("python") for p in pids):
        time.sleep(1)  # they write their tracebacks
    return "\n".join(lines)


def shared_things():
    """Files and folders that tests may leave in places that all share, and abstract sockets."""
    found = set()
    for folder in SHARED_FOLDERS:
        try:
            found |= {os.path.join(folder, n) for n in os.listdir(folder) if n.lower().startswith(("troupe", "sem.troupe"))}
        except OSError:
            pass
    for line in read("/proc/net/unix").decode(errors="replace").splitlines():
        name = line.split()[-1]
        if name.startswith("@") and "troupe" in name:
            found.add("socket " + name)
    return found
