"""The number of threads follows what is measured."""

import pytest
import torch

from pufferlib.threads import RETRY_S, ThreadTuner


@pytest.fixture(autouse=True)
def keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Machine:
    """A clock, and how long an update takes with each number of threads."""

    def __init__(self, **cost):
        self.now, self.cost = 0.0, cost

    def run(self, tuner, updates):
        used = []
        for _ in range(updates):
            used.append(tuner.threads)
            spent = self.cost[f"n{tuner.threads}"]
            self.now += spent
            tuner.after_update(spent)
        return used


def test_every_candidate_is_tried_and_the_fastest_kept():
    machine = Machine(n1=3.0, n2=1.0, n4=2.0, n6=5.0)
    tuner = ThreadTuner(6, clock=lambda: machine.now)
    assert machine.run(tuner, 8) == [6, 6, 4, 4, 2, 2, 1, 1]
    assert machine.run(tuner, 5) == [2] * 5
    assert torch.get_num_threads() == 2


def test_the_neighbours_are_tried_again_and_a_change_is_followed():
    machine = Machine(n1=2.0, n2=1.0)
    tuner = ThreadTuner(2, clock=lambda: machine.now)
    machine.run(tuner, 4)
    machine.cost = {"n1": 2.0, "n2": 30.0}  # Somebody else took a core.
    machine.run(tuner, int(RETRY_S) // 30 + 6)
    assert tuner.threads == 1 and torch.get_num_threads() == 1


def test_one_core_leaves_nothing_to_try():
    tuner = ThreadTuner(1)
    tuner.after_update(1.0)
    assert tuner.threads == 1
