"""How many threads the policy's arithmetic should have: found by trying, while the run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

TRIALS = 2  # Updates for each candidate, of which the faster counts.
RETRY_S = 60.0  # The machine may have become busy, or idle, since.


class ThreadTuner:
    """Gives torch the number of threads with which updates are fastest, of 1, 2, 4, … `most`.

    More threads do not always help: small matrices are not worth sharing, and on a busy machine
    every thread waits for the one that was not scheduled. `after_update` is told how long an
    update's arithmetic took; it tries each candidate for a few updates, keeps the best, and tries
    its neighbours again from time to time. Use it only where results do not depend on the number
    of threads.
    """

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic):
        self._counts = sorted({2**k for k in range(most.bit_length()) if 2**k <= most} | {most})
        self._clock = clock
        self._best = self._counts[-1]
        self._begin(self._counts[::-1])

    @property
    def threads(self) -> int:
        """The number in use."""
        return self._trying[0] if self._trying else self._best

    def after_update(self, seconds: float) -> None:
        """Take in the time of one update and set the number of the next."""
        if self._trying:
            self._seen.setdefault(self._trying[0], []).append(seconds)
            if len(self._seen[self._trying[0]]) < TRIALS:
                return
            self._trying.pop(0)
            if not self._trying:
                self._best = min(self._seen, key=lambda count: min(self._seen[count]))
                self._tried_at = self._clock()
        elif len(self._counts) > 1 and self._clock() - self._tried_at > RETRY_S:
            at = self._counts.index(self._best)
            self._begin(self._counts[max(0, at - 1) : at + 2])
        torch.set_num_threads(self.threads)

    def _begin(self, counts: list[int]) -> None:
        self._trying = list(counts) if len(self._counts) > 1 else []
        self._seen: dict[int, list[float]] = {}
        self._tried_at = self._clock()
        torch.set_num_threads(self.threads)
