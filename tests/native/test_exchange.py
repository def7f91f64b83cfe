"""Orders to workers and their answers: threads stand in for the processes."""

import mmap
import threading
import time

import pytest

from pufferlib.exceptions import APIUsageError
from pufferlib.native.exchange import Exchange, Lanes

STEP, CLOSE = 1, 3
WAITING = {"asleep": (0.0, False), "spinning": (300.0, False), "polite": (300.0, True)}


class Workers:
    """`count` workers that note the kind of each order; those `held` wait for `release` first."""

    def __init__(self, count, waiting=(0.0, False), held=(), says=False):
        self.memory = mmap.mmap(-1, Lanes.size(count))
        self.lanes = Lanes(self.memory, count, *waiting)
        self.waiting, self.held, self.says = waiting, held, says
        self.release = threading.Event()
        self.obeyed = [[] for _ in range(count)]
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(count)]

    def work(self, i):
        lanes = Lanes(self.memory, len(self.obeyed), *self.waiting)
        order = None
        while order != CLOSE:
            while (order := lanes.receive(i, 5.0)) < 0:
                continue
            if i in self.held:
                self.release.wait()
            self.obeyed[i].append(order)
            lanes.answer(i, self.says)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self.lanes

    def __exit__(self, *_):
        self.release.set()
        for i, thread in enumerate(self.threads):
            while self.lanes.wait([i], 1, 5.0) < 0:
                continue
            self.lanes.order(i, i + 1, CLOSE)
            thread.join()


def gather(exchange):
    """The groups of the next batch; a worker that is looked after is not lost."""
    while not exchange.gather(5.0):
        continue
    return exchange.current


@pytest.mark.parametrize("waiting", WAITING)
@pytest.mark.parametrize(("size", "per_batch"), [(1, 1), (2, 1), (4, 1), (1, 2)])
@pytest.mark.parametrize("in_order", [True, False])
def test_every_order_is_obeyed_once(waiting, size, per_batch, in_order):
    workers = Workers(4, WAITING[waiting])
    with workers as lanes:
        exchange = Exchange(lanes, size, per_batch, in_order)
        exchange.order(range(4 // size), STEP)
        counts = [0] * (4 // size)
        for _ in range(300):
            current = gather(exchange)
            assert len(current) == per_batch == len(set(current))
            for group in current:
                counts[group] += 1
            exchange.order(current, STEP)
    assert [len(obeyed) - 2 for obeyed in workers.obeyed] == [
        n for n in counts for _ in range(size)
    ]
    if in_order:
        assert max(counts) - min(counts) <= 1


def test_the_first_that_is_ready_is_taken_or_the_oldest():
    workers = Workers(2, held=[0])
    with workers as lanes:
        first = Exchange(lanes, 1, 1, in_order=False)
        first.order([0, 1], STEP)
        assert gather(first) == [1] and first.pending == [0]
        workers.release.set()
        assert gather(first) == [0]
        oldest = Exchange(lanes, 1, 1, in_order=True)
        workers.release.clear()
        oldest.order([0, 1], STEP)
        assert not oldest.gather(0.05) and oldest.pending == [0, 1]
        workers.release.set()
        assert gather(oldest) == [0] and gather(oldest) == [1]


def test_a_batch_that_is_not_full_is_kept():
    workers = Workers(2, held=[1])
    with workers as lanes:
        exchange = Exchange(lanes, 1, 2, in_order=False)
        exchange.order([0, 1], STEP)
        while not exchange.ready:
            assert not exchange.gather(0.05)
        assert (exchange.pending, exchange.ready, exchange.current) == ([1], [0], [])
        workers.release.set()
        assert gather(exchange) == [0, 1]


def test_who_does_not_answer_is_told_with_the_order_and_its_age():
    workers = Workers(3, held=[1, 2])
    with workers as lanes:
        exchange = Exchange(lanes, 1, 3, in_order=False)
        exchange.order([0, 1, 2], STEP)
        while 0 not in exchange.ready:
            assert not exchange.gather(0.1)
        late = exchange.unanswered()
        assert [(worker, kind) for worker, kind, _ in late] == [(1, STEP), (2, STEP)]
        assert all(age_s >= 0.1 for *_, age_s in late)
        workers.release.set()
        gather(exchange)
        assert exchange.unanswered() == []


def test_a_silent_worker_does_not_hide_behind_one_that_always_answers():
    with Workers(2, held=[0]) as lanes:
        exchange = Exchange(lanes, 1, 1, in_order=False)
        start, looks = time.monotonic(), []
        exchange.order([0, 1], STEP)
        while len(looks) < 2:
            if exchange.gather(5.0):
                exchange.order(exchange.current, STEP)
            else:
                looks.append(time.monotonic() - start)
                assert [worker for worker, *_ in exchange.unanswered()][:1] == [0]
        assert looks[0] > 1 and looks[1] > 2


def test_nothing_comes_where_nothing_was_ordered():
    with Workers(2) as lanes:
        for in_order in (True, False):
            assert not Exchange(lanes, 1, 1, in_order).gather(0.01)


def test_messages_are_told_until_they_are_read():
    with Workers(2, says=True) as lanes:
        exchange = Exchange(lanes, 2, 1, in_order=True)
        exchange.order([0], STEP)
        gather(exchange)
        assert exchange.speaks() and exchange.speaks()
        assert lanes.speakers(0, 2) == (0, 1)
        assert not exchange.speaks() and lanes.speakers(0, 2) == ()


def test_what_was_forgotten_is_not_waited_for():
    with Workers(2) as lanes:
        exchange = Exchange(lanes, 1, 1, in_order=False)
        exchange.order([0, 1], STEP)
        gather(exchange)
        gather(exchange)
        exchange.forget()
        assert (exchange.pending, exchange.ready, exchange.current) == ([], [], [])


def test_memory_that_is_too_small_is_refused():
    memory = mmap.mmap(-1, Lanes.size(2))
    with pytest.raises(APIUsageError, match="1000 lanes do not fit into"):
        Lanes(memory, 1000, 0.0, False)
