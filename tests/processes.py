"""Waiting for processes to end, by their own descriptors."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Process ids of all descendants, parents before children."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found[1:]


def all_end(pids: Iterable[int], seconds: float = 20.0) -> bool:
    """Whether all these processes end within the time."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(descriptor)
        if not ready:
            return False
    return True
