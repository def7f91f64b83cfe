"""What this process may use of the machine."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores(*, root: Path = Path("/")) -> int:
    """Cores that this process may keep busy: the affinity mask, cut by the cgroup's quota.

    Reads cgroup v2 (`cpu.max`, from this process's group up to the top) and v1
    (`cpu.cfs_quota_us` / `cpu.cfs_period_us`). A quota is rounded down, to at least 1. `root` is
    where `/sys` and `/proc` are looked for.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    for quota, period in _quotas(root):
        cores = min(cores, max(1, math.floor(quota / period)))
    return cores


def _quotas(root: Path):
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            folder = mount / group.lstrip("/")
            for level in (folder, *folder.parents):
                words = _read(level / "cpu.max").split()
                if len(words) == 2 and words[0] != "max":
                    yield int(words[0]), int(words[1])
                if level == mount:
                    break
        elif "cpu" in controllers.split(","):
            for level in (
                mount / controllers / group.lstrip("/"),
                mount / controllers,
                mount / "cpu",
            ):
                quota, period = (
                    _read(level / "cpu.cfs_quota_us"),
                    _read(level / "cpu.cfs_period_us"),
                )
                if quota and period and int(quota) > 0:
                    yield int(quota), int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
