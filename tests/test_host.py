"""Host facts, read from laid-out /proc and /sys trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline import host

GIB = 1 << 30


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2_tree(root: Path, **files: str) -> Path:
    return lay_out(
        root,
        {
            "proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n",
            "proc/self/cgroup": "0::/outer/inner\n",
            "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
            **{name.replace("__", "/").replace("DOT", "."): text for name, text in files.items()},
        },
    )


INNER = "sys__fs__cgroup__outer__inner__"
OUTER = "sys__fs__cgroup__outer__"


def test_memory_without_limits_is_what_the_kernel_says(tmp_path: Path) -> None:
    assert host.available_memory(v2_tree(tmp_path)) == 16 * GIB


def test_memory_heeds_the_tightest_cgroup_above(tmp_path: Path) -> None:
    root = v2_tree(
        tmp_path,
        **{
            f"{INNER}memoryDOTmax": "max\n",
            f"{INNER}memoryDOTcurrent": str(GIB),
            f"{OUTER}memoryDOTmax": str(4 * GIB),
            f"{OUTER}memoryDOTcurrent": str(3 * GIB),
            f"{OUTER}memoryDOTstat": f"anon 5\ninactive_file {GIB // 2}\n",
        },
    )
    assert host.available_memory(root) == GIB + GIB // 2


def test_memory_of_an_overdrawn_cgroup_is_nothing(tmp_path: Path) -> None:
    root = v2_tree(tmp_path, **{f"{OUTER}memoryDOTmax": str(GIB), f"{OUTER}memoryDOTcurrent": str(2 * GIB)})
    assert host.available_memory(root) == 0


def test_memory_and_quota_of_cgroup_v1_mounted_from_inside_a_container(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/meminfo": "MemAvailable: 16777216 kB\n",
            "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n",
            "proc/self/mountinfo": (
                "31 23 0:27 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "32 23 0:28 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
            ),
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert host.available_memory(root) == GIB
    assert host.cpu_quota(root) == 1.5


@pytest.mark.parametrize(("cpu_max", "quota"), [("max 100000", None), ("250000 100000", 2.5)])
def test_quota_of_cgroup_v2(tmp_path: Path, cpu_max: str, quota: float | None) -> None:
    assert host.cpu_quota(v2_tree(tmp_path, **{f"{INNER}cpuDOTmax": cpu_max})) == quota


def test_a_quota_limits_the_cores_but_never_to_none(tmp_path: Path) -> None:
    root = v2_tree(tmp_path, **{f"{INNER}cpuDOTmax": "50000 100000"})
    assert len(host.usable_cores(root)) == 1


def test_without_a_quota_all_cores_of_the_affinity_mask_are_used(tmp_path: Path) -> None:
    assert set(host.usable_cores(v2_tree(tmp_path))) == os.sched_getaffinity(0)


def test_hyperthreads_of_one_core_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    siblings = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{text}\n" for cpu, text in siblings.items()
    }
    assert host.usable_cores(lay_out(tmp_path, files)) == [0, 2, 1, 3]


def test_the_real_machine_answers() -> None:
    assert host.available_memory() > 0
    assert host.usable_cores()


def test_stages_get_cores_of_their_own() -> None:
    shares = host.share_cores([4, 5, 6, 7, 8], 2, 0, pin=True)
    assert shares == [(2, (4, 5)), (2, (6, 7))]


@pytest.mark.parametrize(
    ("cores", "stages", "threads", "pin"),
    [([0, 1], 3, 0, True), ([0, 1], 2, 2, True), ([0, 1, 2, 3], 2, 1, False)],
)
def test_stages_float_when_cores_do_not_suffice_or_pinning_is_off(
    cores: list[int], stages: int, threads: int, pin: bool
) -> None:
    shares = host.share_cores(cores, stages, threads, pin)
    assert [share.cpus for share in shares] == [()] * stages
    assert all(share.threads == (threads or 1) for share in shares)
