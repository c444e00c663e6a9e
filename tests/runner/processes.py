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
# How names of things in them begin. The tests of this program have one of their own, which nobody
# else's tests leave anything under.
SHARED_NAME = os.environ.get("TROUPE_TEST_SHARED", "troupe")


def adopt_orphans():
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def default_signals():
    """In a child, before it runs anything: who started this program in the background, or with nohup, has it ignore
    signals, which a shell passes on and a test that sends them must not find."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


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


def number_of(pid, field):
    """Of /proc/PID/stat, counted as its manual does."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[field - 3]) if len(fields) > field - 3 else 0


def session_of(pid):
    return number_of(pid, 6)


def is_living(pid):
    """Also where its first thread has ended and others have not: its own state is a zombie's."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return bool(fields) and (fields[0] not in (b"Z", b"X") or int(fields[17]) > 1)


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


def of_test(mark, session):
    """Its living processes: those whose environment has MARK=mark, wherever they have gone, and
    those of its session, whatever they have done to their environment."""
    wanted = f"{MARK}={mark}".encode()
    return [p for p in all_pids() if is_living(p)
            and ((session > 1 and session_of(p) == session) or wanted in read(f"/proc/{p}/environ").split(b"\0"))]


def with_marks_of(own):
    """Living processes whose marks begin with `own`."""
    wanted = f"{MARK}={own}".encode()
    return [p for p in all_pids() if is_living(p)
            and any(e.startswith(wanted) for e in read(f"/proc/{p}/environ").split(b"\0"))]


def is_group(leader):
    """Also of what has ended and has not been waited for."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def strays(own):
    """Living children of this process other than `own`: those that it has adopted."""
    return [p for p in all_pids() if parent_of(p) == os.getpid() and p not in own and is_living(p)]


def others_run(own):
    """Whether tests of another checkout, or by hand, run on this machine: programs that stand beside a source_folder.txt
    and have no mark that begins with `own`."""
    if "TROUPE_TEST_SHARED" in os.environ:
        return False
    for p in all_pids():
        program = program_of(p)
        if program and os.path.exists(os.path.join(os.path.dirname(program), "source_folder.txt")):
            if not environment_of(p).get(MARK, "").startswith(own):
                return True
    return False


def kill(pids):
    """With their groups: what forks and ends sooner than a list of processes is made has no other
    name that lasts. Who could not be started, or was interrupted at it, has 0, which to kill()
    means this program's own group, and whoever called it."""
    pids = [p for p in pids if p > 1]
    own = os.getpgid(0)
    groups = {number_of(p, 5) for p in pids} - {0, own}
    for end, those in ((os.killpg, groups), (os.kill, pids)):
        for p in those:
            try:
                end(p, signal.SIGKILL)
            except OSError:
                pass


def kill_group(leader):
    try:
        os.killpg(leader, signal.SIGKILL)
    except OSError:
        pass


def kill_all(find, seconds=5.0):
    """Until none is found: those that a process has begun while it was being ended, too."""
    until = time.monotonic() + seconds
    while (pids := find()) and time.monotonic() < until:
        kill(pids)
        time.sleep(0.01)


def one_line(pid, width=160):
    text = " ".join(" ".join(command_of(pid) or [program_of(pid)]).split())
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
    until = time.monotonic() + 60
    for p in ours[:8]:
        if time.monotonic() > until:
            lines.append(f"--- no time for one of {one_line(p)}")
            continue
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
            found |= {os.path.join(folder, n) for n in os.listdir(folder)
                      if n.lower().startswith((SHARED_NAME, "sem." + SHARED_NAME))}
        except OSError:
            pass
    for line in read("/proc/net/unix").decode(errors="replace").splitlines():
        name = line.split(None, 7)[7:]  # a line of its own may be a part of a name
        if name and name[0].startswith("@") and SHARED_NAME in name[0]:
            found.add("socket " + name[0])
    return found
