"""The network that plays MiniHack from `glyphs`, `blstats` and `message`."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from pufferlib.envs.nethack.policy import DIRECTIONS, KINDS, RAY, SECTOR, TOKEN_SIZE, Encoder
from pufferlib.exceptions import APIUsageError
from pufferlib.models import Policy, orthogonal


class MiniHackPolicy(Policy):
    """Puffer's actor and critic over NetHack's `Encoder`, and a second actor that looks in each
    direction: one small network for all eight, so that what is learned going north is known going
    south.

    The first eight actions must be the steps N E S W NE SE SW NW, as in all tasks but Boxoban.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space,
        *,
        hidden_size: int = 128,
        num_layers: int = 1,
    ):
        super().__init__(
            action_space, Encoder(observation_space, hidden_size, num_layers), hidden_size
        )
        if getattr(action_space, "n", 0) < len(DIRECTIONS):
            raise APIUsageError(
                f"MiniHackPolicy needs the {len(DIRECTIONS)} steps among its actions, got "
                f"{action_space}; use policy.name Default"
            )
        size = hidden_size // 2
        self.from_sector = orthogonal(nn.Linear(SECTOR + RAY * len(KINDS) + TOKEN_SIZE, size))
        self.from_trunk = nn.Linear(hidden_size, size, bias=False)
        self.step = nn.Linear(size, 1)
        nn.init.orthogonal_(self.step.weight, 0.01)
        nn.init.zeros_(self.step.bias)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        hidden, ways = self.encoder(observations)
        output = self.head(hidden)
        seen = self.from_sector(ways) + self.from_trunk(hidden)[:, None, :]
        steps = self.step(functional.relu(seen)).squeeze(2)
        logits, values = output[:, :-1], output[:, -1]
        near, rest = logits[:, : len(DIRECTIONS)], logits[:, len(DIRECTIONS) :]
        return torch.cat([near + steps, rest], 1), values
