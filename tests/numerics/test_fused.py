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


def test_it_fits_discrete_actions_in_float32_only():
    rows = torch.zeros(4, 3), torch.zeros(4)
    assert fused.fits(models.Categorical([3]), *rows)
    assert not fused.fits(models.Gaussian(3), *rows)
    assert not fused.fits(models.Categorical([3]), rows[0].double(), rows[1])
