"""What tests ask about processes that are not their own children."""

import time
from pathlib import Path


def await_end(pids):
    """Return once none of the processes runs; fail after a time that no machine needs."""
    deadline = time.monotonic() + 60
    while still := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"processes {still} outlive who started them"
        time.sleep(0.01)


def is_running(pid):
    """Whether a process runs; a zombie that nobody has looked after does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
