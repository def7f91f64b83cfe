"""The network for grid worlds: cells and words are names, not quantities."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from pufferlib.exceptions import APIUsageError
from pufferlib.models import Policy, orthogonal, unpack_tensors
from pufferlib.spaces import PackedBox

from . import CELL_SIZES, MISSION_LENGTH, OTHER

WORD_SIZE = 8


class MiniGridPolicy(Policy):
    """Layers over one-hot cells, the direction, and a learned vector for each word."""

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space,
        *,
        hidden_size: int = 128,
        num_layers: int = 1,
    ):
        encoder = nn.Sequential(GridInput(observation_space))
        width = encoder[0].size
        for _ in range(1 + num_layers):
            encoder.extend([orthogonal(nn.Linear(width, hidden_size)), nn.ReLU()])
            width = hidden_size
        super().__init__(action_space, encoder, hidden_size)


class GridInput(nn.Module):
    """Packed rows → one float vector each [B, size]."""

    def __init__(self, space: spaces.Box):
        super().__init__()
        layout = space.layout if isinstance(space, PackedBox) else None
        leaves = {leaf.name: leaf for leaf in layout.leaves} if layout else {}
        if not leaves.keys() >= {"image", "direction"}:
            raise APIUsageError(f"MiniGridPolicy needs an observation of minigrid, got {space}")
        self.layout, self.has_mission = layout, "mission" in leaves
        cells = leaves["image"].shape[0] * leaves["image"].shape[1]
        self.size = cells * sum(CELL_SIZES) + 4 + self.has_mission * MISSION_LENGTH * WORD_SIZE
        if self.has_mission:
            self.words = nn.Embedding(OTHER + 1, WORD_SIZE, padding_idx=0)
        choices = torch.cat([torch.arange(n) for n in CELL_SIZES])
        channels = torch.repeat_interleave(torch.arange(3), torch.tensor(CELL_SIZES))
        self.register_buffer("choices", choices.to(torch.uint8), persistent=False)
        self.register_buffer("channels", channels, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        fields = dict(
            zip(
                (leaf.name for leaf in self.layout.leaves),
                unpack_tensors(self.layout, rows),
                strict=True,
            )
        )
        cells = fields["image"].index_select(3, self.channels) == self.choices
        direction = functional.one_hot(fields["direction"].reshape(-1).long(), 4)
        parts = [cells.flatten(1).float(), direction.float()]
        if self.has_mission:
            parts.append(self.words(fields["mission"].int()).flatten(1))
        return torch.cat(parts, 1)
