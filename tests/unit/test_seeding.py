"""The rule that turns one root seed into a seed for every environment."""

import numpy as np
import pytest

from pufferlib.seeding import env_seed, env_seeds, fresh_seed


@pytest.mark.parametrize("root", [0, 1, 42, 2**31 - 1, 2**63 + 5, -1])
def test_seeds_of_one_root_are_distinct_and_in_range(root):
    seeds = env_seeds(root, 2**17)
    assert seeds.dtype == np.uint64
    assert len(np.unique(seeds)) == 2**17
    assert seeds.max() < 2**31


@pytest.mark.parametrize("root", [0, 7, 2**40, -3])
def test_scalar_and_array_agree(root):
    seeds = env_seeds(root, 100)
    assert [env_seed(root, k) for k in range(100)] == seeds.tolist()
    assert type(env_seed(root, np.int64(3))) is int


def test_seeds_are_the_same_on_every_machine_and_version():
    assert env_seeds(0, 4).tolist() == [1234777197, 721124879, 1218521843, 506046125]


def test_seeds_do_not_depend_on_the_number_of_environments():
    assert np.array_equal(env_seeds(5, 8), env_seeds(5, 1000)[:8])


def test_neighbouring_roots_give_other_seeds_at_the_same_index():
    table = np.stack([env_seeds(root, 64) for root in range(64)])
    # 4096 draws of 31 bits meet by chance with probability 0.4 %; these do not.
    assert len(np.unique(table)) == table.size


@pytest.mark.parametrize("axis", ["index", "root"])
def test_neighbours_differ_in_half_of_their_bits(axis):
    pairs = [(env_seed(k, 5), env_seed(k + 1, 5)) for k in range(2000)]
    if axis == "index":
        pairs = [(env_seed(5, k), env_seed(5, k + 1)) for k in range(2000)]
    flips = np.array([[(a ^ b) >> bit & 1 for bit in range(31)] for a, b in pairs])
    # Each bit flips with probability 1/2; 0.06 is more than five standard errors of 2000 draws.
    assert np.abs(flips.mean(0) - 0.5).max() < 0.06


def test_an_index_outside_the_range_is_refused():
    with pytest.raises(ValueError, match=r"index is -1; expected 0 to 2147483647"):
        env_seed(0, -1)
    with pytest.raises(ValueError, match=r"n is -1; expected 0 to 2147483648"):
        env_seeds(0, -1)


def test_fresh_seeds_differ_and_leave_the_global_generator_alone():
    before = np.random.get_state()[1].copy()
    seeds = {fresh_seed() for _ in range(32)}
    assert len(seeds) > 16
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert np.array_equal(before, np.random.get_state()[1])
