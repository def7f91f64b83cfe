"""Where the time of an update goes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

PHASES = ("environment", "inference", "copy", "advantage", "update", "other")


@dataclass
class Clock:
    """Seconds spent in each phase since the last `read`."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    last: float = field(default_factory=time.perf_counter)

    def lap(self, phase: str) -> None:
        """Count the time since the last lap as `phase`."""
        now = time.perf_counter()
        self.seconds[phase] += now - self.last
        self.last = now

    def read(self) -> dict[str, float]:
        """The seconds of each phase, which start again at 0."""
        seconds, self.seconds = self.seconds, dict.fromkeys(PHASES, 0.0)
        return seconds
