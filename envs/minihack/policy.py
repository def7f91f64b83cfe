"""The network that plays MiniHack from `glyphs`, `blstats` and `message`."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor

from pufferlib.envs.nethack.policy import DIRECTIONS, Encoder, Scout
from pufferlib.exceptions import APIUsageError
from pufferlib.models import Policy


class MiniHackPolicy(Policy):
    """Puffer's actor and critic over NetHack's `Encoder`, and its `Scout` for the steps.

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
        self.scout = Scout(hidden_size, 1)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        hidden, ways = self.encoder(observations)
        output = self.head(hidden)
        steps = self.scout(hidden, ways).squeeze(2)
        logits, values = output[:, :-1], output[:, -1]
        near, rest = logits[:, : len(DIRECTIONS)], logits[:, len(DIRECTIONS) :]
        return torch.cat([near + steps, rest], 1), values
