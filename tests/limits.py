"""Programs that a test runs and waits for, with a limit against hangs.

What does not end is ended, with all that it started, and the test fails with the command and with the
tail of what it said.
"""

import os
import signal
import subprocess

HANG = 60.0  # seconds: no program of a test takes as long, also on a busy machine
BUILD = 240.0  # what runs a compiler


def tail(text):
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return (text or "")[-4000:]


def end(process):
    """Ends what was started with start_new_session, and its children, and waits for it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait(timeout=HANG)


def output_of(process, seconds=HANG):
    """What it says until it ends, on both streams: it has a session of its own."""
    try:
        return process.communicate(timeout=seconds)
    except BaseException as e:
        end(process)
        if not isinstance(e, subprocess.TimeoutExpired):
            raise
        try:
            said = process.communicate(timeout=10)
        except subprocess.TimeoutExpired as late:  # somebody else still holds its streams
            said = late.stdout, late.stderr
        command = " ".join(map(str, process.args))
        raise AssertionError(f"{command}\ndid not end within {seconds:.0f} s; it said\n"
                             f"{tail(said[0])}{tail(said[1])}") from None


def run(arguments, seconds=HANG, check=False, **how):
    """As subprocess.run, which would leave what the program has started."""
    how = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    with subprocess.Popen(arguments, start_new_session=True, **how) as process:
        out, err = output_of(process, seconds)
    if check and process.returncode != 0:
        command = " ".join(map(str, arguments))
        raise AssertionError(f"{command}\nexit code {process.returncode}; it said\n{tail(out)}{tail(err)}")
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)
