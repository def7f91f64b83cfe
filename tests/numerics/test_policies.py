"""Distributions, inputs and optimizers, each against numbers known beforehand."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from pufferlib import models
from pufferlib.config import TrainConfig
from pufferlib.exceptions import APIUsageError
from pufferlib.optimizers import make_optimizer, orthogonalize
from pufferlib.spaces import pack_space

ROWS = 10_000


def draw(distribution, parameters, seed=0):
    noise = torch.empty(len(parameters), distribution.num_noise)
    distribution.draw_noise(noise, torch.Generator().manual_seed(seed))
    return distribution.sample(parameters, noise)


@pytest.mark.parametrize("sizes", [[3, 5, 7], [4, 4], [1]])
def test_discrete_components_stay_in_range_and_take_every_choice(sizes):
    distribution = models.Categorical(sizes)
    actions = draw(distribution, torch.zeros(ROWS, sum(sizes)))
    for column, size in zip(actions.T, sizes, strict=True):
        assert column.unique().tolist() == list(range(size))


def test_samples_follow_their_probabilities():
    distribution = models.Categorical([3])
    logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(ROWS, 3)
    actions = draw(distribution, logits)
    share = torch.bincount(actions[:, 0], minlength=3) / ROWS
    # Five standard deviations of a share at this many draws.
    assert share.tolist() == pytest.approx([0.5, 0.3, 0.2], abs=5 * 0.5 / math.sqrt(ROWS))


def test_logprobs_and_entropies_are_sums_over_unequal_components():
    distribution = models.Categorical([2, 3])
    logits = torch.tensor([[0.0, math.log(3), 0.0, 0.0, math.log(2)]])
    logprobs, entropy = distribution.evaluate(logits, torch.tensor([[1, 2]], dtype=torch.int32))
    assert logprobs.item() == pytest.approx(math.log(3 / 4) + math.log(2 / 4))
    halves = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    thirds = -(2 * 0.25 * math.log(0.25) + 0.5 * math.log(0.5))
    assert entropy.item() == pytest.approx(halves + thirds)


@pytest.mark.parametrize("distribution", [models.Categorical([3, 5]), models.Gaussian(4)])
def test_likelier_actions_are_drawn_from_the_same_noise_and_best_needs_none(distribution):
    torch.manual_seed(0)
    parameters = torch.randn(100, 8)
    best = distribution.best(parameters)
    silent = distribution.sample(parameters, torch.zeros(100, distribution.num_noise))
    torch.testing.assert_close(silent, best, rtol=0, atol=0)
    assert torch.equal(draw(distribution, parameters), draw(distribution, parameters))
    assert not torch.equal(draw(distribution, parameters), best)


def test_gaussian_numbers():
    distribution = models.Gaussian(1)
    logprobs, entropy = distribution.evaluate(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0]]))
    assert logprobs.item() == pytest.approx(-2 - 0.5 * math.log(2 * math.pi))
    assert entropy.item() == pytest.approx(0.5 * math.log(2 * math.pi * math.e))


def test_samples_beyond_the_bounds_are_kept_raw():
    # Field report O-19: the action is cut on its way into the environment, not in the storage.
    box = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32))
    distribution = models.make_distribution(box)
    parameters = torch.tensor([[3.0, 3.0, 0.0, 0.0]]).expand(1000, 4)
    actions = draw(distribution, parameters)
    assert actions[:, 0].max() > 1.0


def test_an_action_space_without_a_distribution_is_refused():
    with pytest.raises(APIUsageError, match="no action distribution for a Text"):
        models.make_distribution(spaces.Text(3))


def policy_input(space, value):
    """The vector that Default feeds its first layer."""
    packed = pack_space(space)
    row = np.zeros((1, *packed.shape), packed.dtype)
    if packed is space:
        row[0] = value
    else:
        packed.pack(value, row[0])
    return models.Flatten(packed)(torch.from_numpy(row))[0].tolist()


def test_image_bytes_become_zero_to_one():
    image = np.full((4, 4, 3), 255, np.uint8)
    assert policy_input(spaces.Box(0, 255, (4, 4, 3), np.uint8), image) == [1.0] * 48


def test_bytes_that_are_no_image_are_not_scaled():
    values = np.arange(8, dtype=np.uint8)
    assert policy_input(spaces.Box(0, 255, (8,), np.uint8), values) == list(range(8))


@pytest.mark.parametrize("high", [255.0, np.inf])
def test_floats_are_never_scaled(high):
    value = np.full((4, 4, 3), 100, np.float32)
    assert policy_input(spaces.Box(-high, high, (4, 4, 3), np.float32), value) == [100.0] * 48


def test_discrete_fields_become_one_hot_from_their_start():
    space = spaces.Dict(
        {"a": spaces.Discrete(3, start=5), "b": spaces.Box(-9, 9, (2,), np.float32)}
    )
    value = {"a": 6, "b": np.array([1.5, -2], np.float32)}
    assert policy_input(space, value) == [0, 1, 0, 1.5, -2]


def test_mixed_dtypes_reach_the_policy_exactly():
    # Field report O-02.
    space = spaces.Dict(
        {
            "img": spaces.Box(0, 255, (2, 2), np.uint8),
            "xy": spaces.Box(-(2**31), 2**31 - 1, (2,), np.int32),
            "f": spaces.Box(-1, 1, (1,), np.float32),
            "flag": spaces.MultiBinary(3),
        }
    )
    value = {
        "img": np.full((2, 2), 255, np.uint8),
        "xy": np.array([-(2**31), 2**31 - 1], np.int32),
        "f": np.array([1e-40], np.float32),
        "flag": np.array([1, 0, 1], np.int8),
    }
    packed = pack_space(space)
    row = np.zeros((1, *packed.shape), packed.dtype)
    packed.pack(value, row[0])
    fields = models.unpack_tensors(packed.layout, torch.from_numpy(row))
    for leaf, field in zip(packed.layout.leaves, fields, strict=True):
        np.testing.assert_array_equal(field[0].numpy(), value[leaf.name])


@pytest.mark.parametrize("channels_last", [True, False])
def test_channel_order_comes_from_the_settings(channels_last):
    shape = (40, 44, 3) if channels_last else (3, 40, 44)
    policy = models.Convolutional(
        spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(4), channels_last=channels_last
    )
    parameters, values = policy(torch.zeros((2, *shape), dtype=torch.uint8))
    assert parameters.shape == (2, 4) and values.shape == (2,)


def test_convolutional_refuses_small_images():
    with pytest.raises(APIUsageError, match="at least 36 x 36 pixels, got 8 x 8"):
        models.Convolutional(spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Discrete(2))


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(APIUsageError, match=r"no policy 'Defualt'; expected one of .*Default"):
        models.find_policy("Defualt")


@pytest.mark.parametrize("shape", [(8, 8), (4, 16), (16, 4)])
def test_orthogonalize_flattens_the_singular_values(shape):
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape) * 100))
    # The iteration ends in this band by design (Jordan et al. 2024), not at 1.
    assert values.min() > 0.3 and values.max() < 1.3


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_optimizers_descend(name):
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3)
    optimizer = make_optimizer(layer, TrainConfig(optimizer=name, learning_rate=0.02))
    target = torch.randn(32, 3)
    source = torch.randn(32, 4)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        error = (layer(source) - target).square().mean()
        error.backward()
        optimizer.step()
        losses.append(error.item())
    assert losses[-1] < 0.9 * losses[0]
