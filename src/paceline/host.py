"""What this machine gives us: cores (affinity, cgroup quota, siblings) and free memory (cgroup limits count).

Linux only, read from /proc and /sys; every reader takes the root folder so that tests can lay one out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")


class CoreShare(NamedTuple):
    """What one stage computes with: `threads` threads, on exactly `cpus` unless that is empty (not pinned)."""

    threads: int
    cpus: tuple[int, ...]


def usable_cores(root: Path = ROOT) -> list[int]:
    """The logical CPUs this process should use, hyperthreads of one core next to each other.

    The affinity mask says which; a cgroup CPU quota of q cores allows no more than max(1, floor(q)) of them,
    because threads beyond the quota only get each other throttled.
    """
    allowed = sorted(os.sched_getaffinity(0), key=lambda cpu: (_first_sibling(cpu, root), cpu))
    quota = cpu_quota(root)
    return allowed if quota is None else allowed[: max(1, int(quota))]


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPU time per wall time that the cgroups above this process grant, in cores; None if unlimited."""
    quotas = []
    for folder in _cgroup_folders("cpu", root):
        v2 = _read(folder / "cpu.max").split()
        if len(v2) == 2 and v2[0] != "max":
            quotas.append(int(v2[0]) / int(v2[1]))
        quota, period = _read_int(folder / "cpu.cfs_quota_us"), _read_int(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def available_memory(root: Path = ROOT) -> int:
    """Bytes that can be allocated now without swapping: MemAvailable, or what a cgroup limit leaves if less.

    File pages that the kernel can drop at once (inactive_file) do not count as used.
    """
    rooms = [_meminfo("MemAvailable", root)]
    for folder in _cgroup_folders("memory", root):
        for limit_name, usage_name, cache_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _read_int(folder / limit_name), _read_int(folder / usage_name)
            if limit is not None and usage is not None:
                rooms.append(limit - usage + _stat(folder / "memory.stat", cache_key))
    return max(0, min(rooms))


def share_cores(cores: list[int], num_stages: int, threads_per_stage: int, pin: bool) -> list[CoreShare]:
    """Cores for each stage: its own if there are enough, else all stages float over all cores.

    Args:
        threads_per_stage: 0 means cores ÷ stages, at least 1.
    """
    threads = threads_per_stage or max(1, len(cores) // num_stages)
    pinned = pin and threads * num_stages <= len(cores)
    return [
        CoreShare(threads, tuple(cores[stage * threads : (stage + 1) * threads]) if pinned else ())
        for stage in range(num_stages)
    ]


# ---------------------------------------------------------------- /proc and /sys


def _cgroup_folders(controller: str, root: Path) -> Iterator[Path]:
    """Folders of the cgroups (v1 and v2) that this process is in for `controller`, innermost first, ancestors after."""
    for mount, mounted_from, is_v2, options in _cgroup_mounts(root):
        if not is_v2 and controller not in options:
            continue
        for line in _read(root / "proc/self/cgroup").splitlines():
            _, names, path = line.split(":", 2)
            if (names == "") if is_v2 else (controller in names.split(",")):
                inside = Path(path.removeprefix(mounted_from if mounted_from != "/" else "").strip("/"))
                for level in (inside, *inside.parents):
                    yield root / mount.lstrip("/") / level


def _cgroup_mounts(root: Path) -> Iterator[tuple[str, str, bool, set[str]]]:
    """(mount point, path in the hierarchy mounted there, is it v2, super options) of each cgroup mount."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) > 4 and len(right) > 2 and right[0] in ("cgroup", "cgroup2"):
            yield left[4], left[3], right[0] == "cgroup2", set(right[2].split(","))


def _first_sibling(cpu: int, root: Path) -> int:
    """The lowest-numbered hyperthread of the core that `cpu` belongs to."""
    text = _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    first = text.replace("-", ",").split(",")[0].strip()
    return int(first) if first.isdigit() else cpu


def _meminfo(key: str, root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise OSError(f"/proc/meminfo has no {key}")


def _stat(path: Path, key: str) -> int:
    for line in _read(path).splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


def _read_int(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read(path: Path) -> str:
    """The file's text, or "" where this kernel has no such file."""
    try:
        return path.read_text()
    except OSError:
        return ""
