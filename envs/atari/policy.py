"""The network for a stack of small screens."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor, nn

from pufferlib.models import Policy, orthogonal, scale_image


class AtariPolicy(Policy):
    """Two convolutions and a layer, as in Mnih et al. 2013 ("Playing Atari with Deep RL").

    A third of the arithmetic of `Convolutional`, which counts on a CPU. Images are
    [stack, height, width], or in colour [stack, height, width, 3].
    """

    def __init__(
        self, observation_space: spaces.Box, action_space: spaces.Space, *, hidden_size: int = 256
    ):
        screens = torch.zeros(1, *observation_space.shape, dtype=torch.uint8)
        channels = Screens()(screens).shape[1]
        trunk = nn.Sequential(
            Screens(),
            orthogonal(nn.Conv2d(channels, 16, 8, stride=4)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(16, 32, 4, stride=2)),
            nn.ReLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            size = trunk(screens).shape[1]
        trunk.extend([orthogonal(nn.Linear(size, hidden_size)), nn.ReLU()])
        super().__init__(action_space, trunk, hidden_size)


class Screens(nn.Module):
    """Bytes [B, stack, H, W] or [B, stack, H, W, 3] → floats 0…1 [B, channels, H, W]."""

    def forward(self, screens: Tensor) -> Tensor:
        if screens.dim() == 5:
            screens = screens.permute(0, 1, 4, 2, 3).flatten(1, 2)
        return scale_image(screens)
