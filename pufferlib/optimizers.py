"""Muon, and the choice of an optimizer by name."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from pufferlib.config import TrainConfig


class Muon(torch.optim.Optimizer):
    """Momentum whose matrix-shaped updates are orthogonalized (Jordan et al. 2024, "Muon").

    Parameters of one axis (biases, gains) take a plain momentum step with the same rate. An update
    of a matrix [rows, columns] is scaled by sqrt(max(1, rows / columns)).
    """

    def __init__(
        self, params: Iterable, lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.0
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                average = state["momentum"]
                average.lerp_(weight.grad, 1 - group["momentum"])
                update = weight.grad.lerp(average, group["momentum"])
                if weight.ndim >= 2:
                    matrix = update.flatten(1)
                    scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                    update = orthogonalize(matrix).view_as(weight) * scale
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(update, alpha=group["lr"])
        return loss


def orthogonalize(matrix: Tensor, *, steps: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrix, roughly: singular values end up between 0.7 and 1.2.

    Five rounds of the quintic Newton-Schulz iteration with the coefficients of Jordan et al. 2024.
    """
    x = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


def make_optimizer(policy: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer that `config.optimizer` names, over all parameters of `policy`."""
    if config.optimizer == "muon":
        return Muon(
            policy.parameters(),
            lr=config.learning_rate,
            momentum=config.adam_beta1,
            weight_decay=config.weight_decay,
        )
    return torch.optim.AdamW(
        policy.parameters(),
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        weight_decay=config.weight_decay,
        fused=True,
    )
