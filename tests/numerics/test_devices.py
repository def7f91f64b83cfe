"""An update on any device, step by step, comes to what the fused one comes to on a CPU."""

from __future__ import annotations

import pytest
import torch

from pufferlib import fused, models, ppo, vector
from pufferlib.config import Config, TrainConfig

ON_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def train(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, dict]:
    """Weights and losses after three updates, with noise that no device can change."""
    source = torch.Generator().manual_seed(1)

    def draw_noise(self, noise, generator):
        uniform = torch.rand(noise.shape, generator=source)
        noise.copy_(-(-uniform.log()).log())

    monkeypatch.setattr(models.Categorical, "draw_noise", draw_noise)
    settings = {"horizon": 16, "minibatch_size": 16 * 64, "threads": 1, "device": device}
    config = Config(train=TrainConfig(**settings))
    with vector.make(name, num_envs=64, num_workers=1) as vecenv:
        torch.manual_seed(0)
        policy = models.Default(vecenv.single_observation_space, vecenv.single_action_space)
        trainer = ppo.create(config, vecenv, policy)
        for _ in range(3):
            metrics = trainer.advance()
    return torch.cat([p.detach().cpu().flatten() for p in policy.parameters()]), metrics["losses"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_CUDA)])
@pytest.mark.parametrize("name", ["breakout", "squared"])
def test_three_updates_come_to_the_same_weights(name, device, monkeypatch):
    expected, losses = train(name, "cpu", monkeypatch)
    monkeypatch.setattr(fused, "fits", lambda *_: False)
    found, others = train(name, device, monkeypatch)
    # Adam divides by the root of what may be next to nothing: 1 rounding in 1e5 shows in a weight.
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert others == pytest.approx(losses, rel=1e-2, abs=1e-3)
