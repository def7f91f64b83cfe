"""Discrete actions on a CPU in one pass over the rows: sampling, and the PPO loss with gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pufferlib.config import TrainConfig
from pufferlib.models import Categorical
from pufferlib.native import core


def fits(distribution: Any, parameters: Tensor, values: Tensor) -> bool:
    """Whether this module can take these: discrete actions, float32 rows on a CPU."""
    plain = all(x.device.type == "cpu" and x.dtype == torch.float32 for x in (parameters, values))
    rows = parameters.dim() == 2 and parameters.stride(1) == 1
    return isinstance(distribution, Categorical) and plain and rows and len(distribution.sizes) < 33


def sample(
    distribution: Categorical, parameters: Tensor, noise: Tensor, actions: Tensor, logprobs: Tensor
) -> None:
    """What `distribution` samples and what it says of that, into actions [B, D], logprobs [B]."""
    core.sample_discrete(
        parameters.data_ptr(), parameters.stride(0), noise.numpy(), distribution.sizes,
        actions.numpy(), logprobs.numpy(),
    )  # fmt: skip


class DiscreteLoss(torch.autograd.Function):
    """What `ppo.loss` computes step by step: (total, [policy, value, entropy, kl, clipped])."""

    @staticmethod
    def forward(
        ctx: Any,
        parameters: Tensor,
        values: Tensor,
        actions: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        old_values: Tensor,
        returns: Tensor,
        sizes: list[int],
        config: TrainConfig,
    ) -> tuple[Tensor, Tensor]:
        """Parameters [B, P], actions [B, D], the rest [B]; advantages as they shall count."""
        gradients = torch.empty(parameters.shape), torch.empty(len(values))
        rows = (actions, old_logprobs, advantages, old_values, returns, *gradients)
        figures = core.discrete_loss(
            parameters.data_ptr(), parameters.stride(0), values.data_ptr(), values.stride(0),
            *(x.numpy() for x in rows), sizes,
            config.clip_coef, config.vf_clip_coef, config.vf_coef, config.ent_coef,
        )  # fmt: skip
        ctx.save_for_backward(*gradients)
        policy, value, entropy, *_ = figures
        total = policy + config.vf_coef * value - config.ent_coef * entropy
        told = torch.tensor(figures, dtype=torch.float32)
        ctx.mark_non_differentiable(told)
        return torch.tensor(total, dtype=torch.float32), told

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor):
        """The gradients of parameters and values; nothing else has any."""
        parameters, values = ctx.saved_tensors
        return gradient * parameters, gradient * values, *([None] * 7)
