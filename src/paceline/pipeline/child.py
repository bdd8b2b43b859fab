"""How a child process of Paceline begins and ends: configured by its standard input, gone when its parent is.

Children are programs of their own, so nothing is pickled to them and nothing secret is on a command line. A child ends
when its parent says so, when its standard input ends, or when the parent dies, whichever comes first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def start(module: str, config: bytes) -> subprocess.Popen[bytes]:
    """Run a module of ours as a child and write it its configuration, one line of JSON.

    The child leaves the terminal's process group, so that Ctrl-C reaches the parent alone. `-P` keeps the working
    folder off its module path. It dies with the *thread* that calls this, so that thread must live as long as the child
    is needed.
    """
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended already; whoever watches it will see that
        child.stdin.write(config + b"\n")
        child.stdin.flush()
    return child


def stop(children: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """End the children's standard inputs, wait so long for them to end, and kill those that do not."""
    for child in children:
        if child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()
    deadline = time.monotonic() + seconds
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def how_it_ended(exit_code: int) -> str:
    """Words for an exit code of :class:`subprocess.Popen`."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def read_config() -> bytes:
    """In the child: the line that the parent wrote to standard input."""
    return sys.stdin.buffer.readline()


def end_with_parent() -> None:
    """In the child: be killed when the parent dies, and leave SIGINT and SIGTERM to it: it says when to end.

    A parent that died before this took effect is noticed by its process id, which the command line names. (That the
    parent is process 1 proves nothing: in a container it may well be the server.)
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if sys.argv[1:] != [str(os.getppid())]:
        sys.exit("this program is started by Paceline itself")


def end(exit_code: int) -> NoReturn:
    """In the child: end now. Taking an interpreter with torch apart can take a second, and there is nothing to save."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
