"""The advantage kernel against numbers worked out by hand and a slow, plain reference."""

import numpy as np
import pytest

from pufferlib.exceptions import APIUsageError
from pufferlib.native import core


def reference(rewards, values, last, boots, terminals, truncations, masks, gamma, lam):
    """Generalized advantage estimation in plain Python and float64."""
    steps, rows = rewards.shape
    out = np.zeros((steps, rows))
    for i in range(rows):
        carry = 0.0
        for t in reversed(range(steps)):
            following = float(values[t + 1, i]) if t + 1 < steps else float(last[i])
            if truncations[t, i]:
                following = float(boots[t, i])
            if terminals[t, i]:
                following = 0.0
            if terminals[t, i] or truncations[t, i]:
                carry = 0.0
            carry = (
                float(rewards[t, i]) + gamma * following - float(values[t, i]) + gamma * lam * carry
            )
            if not masks[t, i]:
                carry = 0.0
            out[t, i] = carry
    return out


def column(*numbers, dtype=np.float32):
    return np.array(numbers, dtype)[:, None]


def compute(rewards, values, last, boots, terminals, truncations, masks, gamma, lam):
    out = np.empty_like(rewards)
    core.advantages(rewards, values, last, boots, terminals, truncations, masks, out, gamma, lam)
    return out


def test_a_truncated_step_bootstraps_from_its_final_observation():
    # Field report O-05, worked out by hand: the value of the final observation is 5.
    cut = column(0, 1, 0, 0, dtype=bool)
    never, present = np.zeros_like(cut), np.ones_like(cut)
    out = compute(
        column(1, 1, 1, 1), column(2, 3, 4, 6), np.array([7], np.float32), column(0, 5, 0, 0),
        never, cut, present, 0.9, 0.8,
    )  # fmt: skip
    np.testing.assert_allclose(out[:, 0], [3.5, 2.5, 3.336, 1.3], rtol=1e-6)  # float32 rounding


def test_a_terminal_step_has_no_future():
    over = column(0, 1, 0, 0, dtype=bool)
    never, present = np.zeros_like(over), np.ones_like(over)
    out = compute(
        column(1, 1, 1, 1), column(2, 3, 4, 6), np.array([7], np.float32), column(0, 0, 0, 0),
        over, never, present, 0.9, 0.8,
    )  # fmt: skip
    np.testing.assert_allclose(out[:2, 0], [0.26, -2.0], rtol=1e-6)  # float32 rounding


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (64, 100)])
@pytest.mark.parametrize("seed", range(3))
def test_the_kernel_equals_the_plain_reference(shape, seed):
    rng = np.random.default_rng(seed)
    rewards, values, boots = (rng.normal(size=shape).astype(np.float32) for _ in range(3))
    last = rng.normal(size=shape[1]).astype(np.float32)
    terminals, truncations = rng.random(shape) < 0.1, rng.random(shape) < 0.1
    truncations &= ~terminals
    boots *= truncations
    masks = rng.random(shape) < 0.9
    arguments = (rewards, values, last, boots, terminals, truncations, masks, 0.97, 0.9)
    # Sums of some dozens of float32 terms of order 1 against the same in float64.
    np.testing.assert_allclose(compute(*arguments), reference(*arguments), rtol=2e-5, atol=2e-5)


def test_an_array_of_another_shape_is_refused():
    good, flags = np.zeros((4, 2), np.float32), np.zeros((4, 2), bool)
    with pytest.raises(APIUsageError, match=r"last_values: .* shape \(2,\), got float32 \(3,\)"):
        core.advantages(
            good, good, np.zeros(3, np.float32), good, flags, flags, flags, good.copy(), 0.9, 0.9
        )


def test_a_read_only_result_is_refused():
    good, flags = np.zeros((4, 2), np.float32), np.zeros((4, 2), bool)
    out = np.zeros((4, 2), np.float32)
    out.setflags(write=False)
    with pytest.raises(APIUsageError, match=r"out: expected .* that can be written"):
        core.advantages(good, good, good[0].copy(), good, flags, flags, flags, out, 0.9, 0.9)


@pytest.mark.parametrize("where", [0, 1023, 1024, 4999])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_value_that_is_not_finite_is_found(where, value):
    numbers = np.full(5000, 3.4e38, np.float32)
    assert core.first_nonfinite(numbers) == -1
    numbers[where] = value
    numbers[4999] = np.nan
    assert core.first_nonfinite(numbers) == where
