"""How a child process of Paceline begins and ends: configured by its standard input, gone when its parent is."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def read_config() -> bytes:
    """The one line of JSON that the parent wrote to standard input."""
    return sys.stdin.buffer.readline()


def end_with_parent() -> None:
    """Be killed when the parent dies, and leave the terminal's signals to it: the parent says when to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == 1:  # the parent was gone before this took effect
        sys.exit(1)
