"""The network that plays Neural MMO: it sees creatures, items and tiles, and points at targets."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from pufferlib.exceptions import APIUsageError
from pufferlib.models import Policy, orthogonal, unpack_tensors
from pufferlib.spaces import Layout, PackedBox

FIELDS = ("AgentId", "Tile", "Entity", "Inventory")
MASKS = "ActionTargets."
MATERIALS = 16
ID, ROW, COLUMN = 0, 2, 3  # Columns of an entity.
THING = 32  # Width of what stands for an entity, an item or a question for one.
FORBIDDEN = -1e8  # A logit of such an action: finite, so that entropies are.


class NeuralMMOPolicy(Policy):
    """Puffer's actor and critic, with what the world forbids masked out.

    Targets and items are chosen by how well what is known of each fits a question that the rest of
    the network asks, so that it does not matter in which place of the list they stand.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space,
        *,
        hidden_size: int = 128,
        num_layers: int = 1,
    ):
        encoder = Encoder(observation_space, hidden_size, num_layers)
        super().__init__(action_space, encoder, hidden_size)
        self.choices = [leaf.name for leaf in encoder.masks]
        asked = [name for name in self.choices if name.endswith(("Target", "InventoryItem"))]
        self.questions = nn.ModuleDict(
            {name.replace(".", "_"): nn.Linear(hidden_size, THING) for name in asked}
        )

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        hidden, entities, items, allowed = self.encoder(rows)
        output = self.head(hidden)
        logits, values = output[:, :-1], output[:, -1]
        pieces = list(logits.split(self.distribution.sizes, 1))
        for k, name in enumerate(self.choices):
            if name.endswith(("Target", "InventoryItem")):
                question = self.questions[name.replace(".", "_")](hidden)
                things = entities if name.endswith("Target") else items
                fits = torch.einsum("bnd,bd->bn", things, question) / THING
                # Behind the things comes the choice of none.
                pieces[k] = pieces[k] + functional.pad(
                    fits, (0, pieces[k].shape[1] - fits.shape[1])
                )
        return torch.cat(pieces, 1).masked_fill(~allowed, FORBIDDEN), values


class Encoder(nn.Module):
    """Packed rows [B, N] → features [B, H], entities [B, 100, THING], items [B, 12, THING] and
    which actions are allowed [B, P]."""

    def __init__(self, observation_space: spaces.Box, hidden_size: int, num_layers: int):
        super().__init__()
        self.layout = _check_space(observation_space)
        leaves = {leaf.name: leaf for leaf in self.layout.leaves}
        self.masks = [leaf for name, leaf in leaves.items() if name.startswith(MASKS)]
        tiles, self.centre = leaves["Tile"].shape[0], leaves["Tile"].shape[0] // 2
        self.materials = nn.Embedding(MATERIALS, 8)
        self.see_tiles = orthogonal(nn.Linear(tiles * 8, hidden_size))
        self.see_entity = orthogonal(nn.Linear(leaves["Entity"].shape[1] + 3, THING))
        self.see_item = orthogonal(nn.Linear(leaves["Inventory"].shape[1], THING))
        self.trunk = nn.Sequential()
        width = hidden_size + 3 * THING
        for _ in range(1 + num_layers):
            self.trunk.extend([orthogonal(nn.Linear(width, hidden_size)), nn.ReLU()])
            width = hidden_size

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        fields = unpack_tensors(self.layout, rows)
        named = dict(zip((leaf.name for leaf in self.layout.leaves), fields, strict=True))
        tiles, entity, item = (named[name].float() for name in FIELDS[1:])
        allowed = torch.cat([named[leaf.name] for leaf in self.masks], 1) > 0

        ground = self.materials(tiles[..., 2].long().clamp(0, MATERIALS - 1)).flatten(1)
        ids = entity[..., ID]
        own = (ids == named["AgentId"].reshape(-1, 1)).unsqueeze(2)
        there = (ids != 0).unsqueeze(2)
        way = (entity[..., ROW : COLUMN + 1] - tiles[:, self.centre, None, :2]) / 7
        known = torch.cat([squash(entity), way, own], 2)
        entities = functional.relu(self.see_entity(known)) * there
        items = functional.relu(self.see_item(squash(item))) * (item[..., ID] != 0).unsqueeze(2)
        parts = [
            functional.relu(self.see_tiles(ground)),
            (entities * own).sum(1),
            entities.amax(1),
            items.amax(1),
        ]
        return self.trunk(torch.cat(parts, 1)), entities, items, allowed


def squash(numbers: Tensor) -> Tensor:
    """Numbers of any size as signed logarithms within a few units."""
    return numbers.sign() * numbers.abs().log1p() * 0.25


def _check_space(space: spaces.Box) -> Layout:
    layout = space.layout if isinstance(space, PackedBox) else None
    found = [leaf.name for leaf in layout.leaves] if layout else []
    if layout is None or not {*FIELDS} <= {*found} or not any(n.startswith(MASKS) for n in found):
        raise APIUsageError(
            f"NeuralMMOPolicy needs the observation keys {', '.join(FIELDS)} and ActionTargets, "
            f"got {space}; use policy.name Default for others"
        )
    return layout
