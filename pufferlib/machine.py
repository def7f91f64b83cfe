"""What this process may use of the machine."""

from __future__ import annotations

import ctypes
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


def keep_freed_memory() -> None:
    """Let the C library keep large blocks that were freed, for this process.

    A trainer frees and takes the same megabytes in every minibatch. By default glibc gives them
    back to the kernel, which hands them out again page by page, zeroed: a tenth of an update and
    more. Does nothing with other C libraries.
    """
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_threshold, 32 << 20)
        mallopt(trim_threshold, 1 << 30)


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
