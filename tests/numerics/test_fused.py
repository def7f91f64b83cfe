"""The loss in one pass against the loss step by step."""

import pytest
import torch

from pufferlib import fused, models, ppo
from pufferlib.config import TrainConfig

ROWS = 500


class Table:
    """A policy whose outputs are the columns of one tensor, as those of `models.Policy` are."""

    def __init__(self, sizes, dtype):
        torch.manual_seed(0)
        self.distribution = models.Categorical(sizes)
        self.output = (2 * torch.randn(ROWS, sum(sizes) + 1)).to(dtype).requires_grad_()

    def __call__(self, observations):
        parameters, values = self.output.split([self.output.shape[1] - 1, 1], 1)
        return parameters, values.squeeze(1)


@pytest.mark.parametrize("sizes", [[3], [2, 5, 1]])
@pytest.mark.parametrize("vf_clip_coef", [0.0, 0.5])
def test_figures_and_gradients_are_those_of_the_plain_loss(sizes, vf_clip_coef, monkeypatch):
    config = TrainConfig(vf_clip_coef=vf_clip_coef, vf_coef=0.7, ent_coef=0.03, clip_coef=0.2)
    results = []
    for fast in (True, False):
        monkeypatch.setattr(fused, "fits", lambda *_, fast=fast: fast)
        policy = Table(sizes, torch.float32 if fast else torch.float64)
        torch.manual_seed(1)
        actions = torch.stack([torch.randint(n, (ROWS,)) for n in sizes], 1).int()
        old = [torch.randn(ROWS) for _ in range(3)]
        old[0] -= 1.5
        if not fast:
            old = [x.double() for x in old]
        total, figures = ppo.loss(policy, torch.zeros(ROWS, 1), actions, *old, config=config)
        (3 * total).backward()
        results.append((total.double(), figures.double(), policy.output.grad.double()))
    assert 0.1 < results[1][1][4] < 0.95  # Some ratios are clipped and some are not.
    for mine, theirs in zip(*results, strict=True):
        # One is summed in float32 from the inputs of the other rounded to float32.
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sizes", [[3], [2, 5, 1], [200]])
@pytest.mark.parametrize("rows", [1, 64, 131])
def test_samples_are_those_of_the_distribution_and_so_are_their_logprobs(sizes, rows):
    distribution = models.Categorical(sizes)
    torch.manual_seed(2)
    output = 3 * torch.randn(rows, sum(sizes) + 1)
    logits = output[:, :-1]
    noise = torch.empty(rows, sum(sizes))
    distribution.draw_noise(noise, torch.Generator().manual_seed(3))
    actions, logprobs = torch.zeros(rows, len(sizes), dtype=torch.int32), torch.zeros(rows)
    fused.sample(distribution, logits, noise, actions, logprobs)
    assert torch.equal(actions, distribution.sample(logits, noise).int())
    exact = distribution.evaluate(logits.double(), actions)[0]
    # Some units in the last place of the largest logarithm.
    torch.testing.assert_close(logprobs.double(), exact, rtol=1e-6, atol=2e-6)


def test_logits_far_apart_and_infinite_ratios_are_those_of_the_plain_loss(monkeypatch):
    """Exponentials under- and overflow here."""
    logits = torch.tensor([[0.0, -200.0, 90.0], [-3e38, 0.0, 1.0], [5.0, 5.0, 5.0]])
    actions = torch.tensor([[1], [0], [2]], dtype=torch.int32)
    distribution = models.Categorical([3])
    config = TrainConfig(normalize_advantage=False)
    old = torch.tensor([-400.0, -1.0, -100.0]), torch.tensor([-1.0, 1.0, 1.0]), torch.zeros(3)
    totals = []
    for fast in (True, False):
        monkeypatch.setattr(fused, "fits", lambda *_, fast=fast: fast)
        policy = Table([3], torch.float32)
        policy.output = torch.cat([logits, torch.zeros(3, 1)], 1).requires_grad_()
        totals.append(ppo.loss(policy, torch.zeros(3, 1), actions, *old, config=config)[0])
    assert totals[0].item() == totals[1].item() == float("inf")
    sampled, logprobs = torch.zeros(3, 1, dtype=torch.int32), torch.zeros(3)
    fused.sample(distribution, logits, torch.zeros(3, 3), sampled, logprobs)
    assert sampled.tolist() == [[2], [2], [0]]
    torch.testing.assert_close(logprobs, distribution.evaluate(logits, sampled)[0])


def test_it_fits_discrete_actions_in_float32_only():
    rows = torch.zeros(4, 3), torch.zeros(4)
    assert fused.fits(models.Categorical([3]), *rows)
    assert not fused.fits(models.Gaussian(3), *rows)
    assert not fused.fits(models.Categorical([3]), rows[0].double(), rows[1])
