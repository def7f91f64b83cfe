"""A residual network over pictures."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from pufferlib.exceptions import APIUsageError
from pufferlib.models import ImageInput, Policy, orthogonal


class Impala(Policy):
    """The deep network of Espeholt et al. 2018 ("IMPALA: Scalable Distributed Deep-RL…").

    Three stages, each a convolution, a pooling that halves the picture and two residual blocks;
    `hidden_size` is the width of the layer behind them. With `num_layers` 1 the stages have 16, 32
    and 32 channels as in the paper, with n times as many as in Cobbe et al. 2020. 0 is for a CPU:
    half the channels, and the first stage halves the picture at once, for a tenth of the work.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space,
        *,
        hidden_size: int = 256,
        num_layers: int = 1,
    ):
        shape = observation_space.shape
        if len(shape) != 3:
            raise APIUsageError(
                f"Impala takes one picture [height, width, channels], got {observation_space}"
            )
        trunk = nn.Sequential(ImageInput(observation_space, channels_last=True))
        channels = shape[2]
        for stage, width in enumerate((16, 32, 32)):
            width = width * num_layers or width // 2
            trunk.append(Stage(channels, width, 2 if num_layers == 0 and stage == 0 else 1))
            channels = width
        trunk.extend([nn.ReLU(), nn.Flatten()])
        with torch.no_grad():
            size = trunk(torch.zeros(1, *shape)).shape[1]
        trunk.extend([orthogonal(nn.Linear(size, hidden_size)), nn.ReLU()])
        super().__init__(action_space, trunk, hidden_size)


class Stage(nn.Module):
    """Pictures [B, C, height, width] → [B, channels, height / 2, width / 2]."""

    def __init__(self, given: int, channels: int, stride: int):
        super().__init__()
        self.enter = nn.Conv2d(given, channels, 3, stride=stride, padding=1)
        self.blocks = nn.Sequential(Block(channels), Block(channels))

    def forward(self, pictures: Tensor) -> Tensor:
        entered = functional.max_pool2d(self.enter(pictures), 3, stride=2, padding=1)
        return self.blocks(entered)


class Block(nn.Module):
    """Two convolutions around which what comes in is added again."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, pictures: Tensor) -> Tensor:
        inner = self.first(functional.relu(pictures))
        return pictures + self.second(functional.relu(inner))
