"""The network that plays snake: what a cell holds is a name, not a quantity."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from pufferlib.models import Policy, orthogonal


class OneHot(nn.Module):
    """Windows of classes [B, 11, 11] uint8 → [B, 11 * 11 * kinds], a 1 where a cell holds a kind.

    Empty cells are all zeros, so that the layer behind it has nothing to add for them.
    """

    def __init__(self, kinds: int):
        super().__init__()
        self.register_buffer("kinds", torch.arange(1, kinds, dtype=torch.uint8), persistent=False)

    def forward(self, windows: Tensor) -> Tensor:
        hits = windows.flatten(1).unsqueeze(1) == self.kinds.view(1, -1, 1)
        return hits.flatten(1).to(torch.get_default_dtype())


class SnakePolicy(Policy):
    """A multilayer perceptron over the one-hot window."""

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space,
        *,
        hidden_size: int = 128,
        num_layers: int = 1,
    ):
        kinds = int(observation_space.high.max()) + 1
        width = (kinds - 1) * int(np.prod(observation_space.shape))
        layers: list[nn.Module] = [OneHot(kinds)]
        for _ in range(num_layers):
            layers += [orthogonal(nn.Linear(width, hidden_size)), nn.ReLU()]
            width = hidden_size
        super().__init__(action_space, nn.Sequential(*layers), width)
