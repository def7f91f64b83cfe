"""When workers carried out their orders, kept in shared memory while somebody wants to know."""

from __future__ import annotations

import time

import numpy as np

KEPT = 4096  # Spans of one worker that are kept until they are read.


class Ledger:
    """A ring of spans for each of `count` workers, in `Ledger.size(count)` bytes from `offset`.

    A span is the begin and the end of one order, in nanoseconds of the monotonic clock
    (`time.perf_counter`). Nothing is written before the first `read`.
    """

    def __init__(self, memory, offset: int, count: int):
        words = np.ndarray(self.size(count) // 8, np.int64, memory, offset)
        self._wanted = words.data
        self._counts = words[1 : 1 + count]
        self._spans = words[1 + count :].reshape(count, KEPT, 2)
        self._read = [0] * count

    @staticmethod
    def size(count: int) -> int:
        """Bytes that the spans of `count` workers take."""
        return 8 * (1 + count + count * KEPT * 2)

    def begin(self) -> int:
        """The time, if it is wanted; else 0."""
        return time.perf_counter_ns() if self._wanted[0] else 0

    def end(self, worker: int, begun: int) -> None:
        """Keep the span of an order that `begin` saw begin."""
        if begun:
            count = int(self._counts[worker])
            self._spans[worker, count % KEPT] = begun, time.perf_counter_ns()
            self._counts[worker] = count + 1

    def read(self) -> list[np.ndarray]:
        """The spans of each worker since the last `read` [orders, 2] int64, the last `KEPT` at
        most, in order."""
        self._wanted[0] = 1
        spans = []
        for worker, count in enumerate(self._counts.tolist()):
            first = max(self._read[worker], count - KEPT)
            spans.append(self._spans[worker, np.arange(first, count) % KEPT])
            self._read[worker] = count
        return spans
