"""The network that plays NetHack from `glyphs`, `blstats` and `message`."""

from __future__ import annotations

import nle.nethack as nh
import numpy as np
import torch
from gymnasium import spaces
from nle.env.tasks import TASK_ACTIONS
from torch import Tensor, nn
from torch.nn import functional

from pufferlib.exceptions import APIUsageError
from pufferlib.models import Policy, orthogonal, unpack_tensors
from pufferlib.spaces import Layout, PackedBox

ROWS, COLUMNS = 21, 79
CELLS = ROWS * COLUMNS
FIELDS = {"glyphs": (ROWS, COLUMNS), "blstats": (nh.NLE_BLSTATS_SIZE,), "message": (256,)}

# The eight directions as (row, column) steps, in the order of nle's actions.
DIRECTIONS = ((-1, 0), (0, 1), (1, 0), (0, -1), (-1, 1), (1, 1), (1, -1), (-1, -1))
FIRST_STEP = TASK_ACTIONS.index(nh.CompassDirection.N)
FIRST_RUN = TASK_ACTIONS.index(nh.CompassDirectionLonger.N)

REACH = 4  # Cells that the crop shows in each direction.
CROP = 2 * REACH + 1
TOKEN_SIZE = 8
RAY = 6  # Cells seen one by one in each direction.
RINGS = (1, 3, 6, 12, 25)  # Distances at which the patches of a sector begin.

MESSAGE_LENGTH = 96  # Longer messages are rare, and say it at their beginning.
BUCKETS = 256

# What the views of the level tell apart; the last is what lies beyond its edge.
KINDS = (
    "unseen", "floor", "corridor", "wall", "door", "stairs down", "feature", "object", "gold",
    "monster", "pet", "outside",
)  # fmt: skip
STAIRS_DOWN, OUTSIDE = KINDS.index("stairs down"), KINDS.index("outside")
SECTOR = len(RINGS) * len(KINDS)
HERO = len(DIRECTIONS) * SECTOR  # Where the patch of the hero's own cell begins, of no sector.

# Map symbols of NetHack 3.6 by their number in `defsym.h`, up to and including the given one.
SYMBOL_KINDS = {
    0: "unseen", 11: "wall", 16: "door", 18: "wall", 20: "floor", 22: "corridor", 23: "feature",
    24: "stairs down", 25: "feature", 26: "stairs down",
}  # fmt: skip

CONDITIONS = 13
STATUS_SIZE = 2 * nh.NLE_BLSTATS_SIZE + 1 + 7 + 6 + CONDITIONS


class NetHackPolicy(Policy):
    """Puffer's actor and critic over an `Encoder`, and a `Scout` for steps and runs."""

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
        if getattr(action_space, "n", 0) != len(TASK_ACTIONS):
            raise APIUsageError(
                f"NetHackPolicy plays the {len(TASK_ACTIONS)} actions of the score task, got "
                f"{action_space}; use policy.name Default for other tasks"
            )
        self.scout = Scout(hidden_size, 2)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        hidden, ways = self.encoder(observations)
        output = self.head(hidden)
        logits, values = output[:, :-1], output[:, -1]
        before, after = logits[:, :FIRST_STEP], logits[:, FIRST_RUN + len(DIRECTIONS) :]
        both = logits[:, FIRST_STEP : FIRST_RUN + len(DIRECTIONS)]
        both = both + self.scout(hidden, ways).transpose(1, 2).flatten(1)
        return torch.cat([before, both, after], 1), values


class Scout(nn.Module):
    """A second actor that looks in each direction: one small network for all eight, so that what
    is learned going north is known going south.

    Features [B, H] and what lies in each direction [B, 8, W], both of an `Encoder` → logits of
    each kind of move that way [B, 8, kinds].
    """

    def __init__(self, hidden_size: int, kinds: int):
        super().__init__()
        size = hidden_size // 2
        self.from_sector = orthogonal(nn.Linear(SECTOR + RAY * len(KINDS) + TOKEN_SIZE, size))
        self.from_trunk = nn.Linear(hidden_size, size, bias=False)
        self.moves = nn.Linear(size, kinds)
        nn.init.orthogonal_(self.moves.weight, 0.01)
        nn.init.zeros_(self.moves.bias)

    def forward(self, hidden: Tensor, ways: Tensor) -> Tensor:
        seen = self.from_sector(ways) + self.from_trunk(hidden)[:, None, :]
        return self.moves(functional.relu(seen))


class Encoder(nn.Module):
    """Packed rows [B, N] → features [B, H] and what lies in each direction [B, 8, W].

    The level is always seen from the hero: a crop of 9 x 9 cells, each a learned vector; rays of
    six cells; and counts of what lies in patches of eight sectors that grow with the distance.
    The status line and the message, a bag of hashed trigrams, follow. All but the crop are inputs
    without parameters, which one matrix product takes together.
    """

    def __init__(self, observation_space: spaces.Box, hidden_size: int, num_layers: int):
        super().__init__()
        self.layout = _check_space(observation_space)
        tokens, kinds = classify_glyphs()
        self.outside = int(tokens.max()) + 1
        steps = torch.tensor(DIRECTIONS)
        near = torch.arange(CROP)[:, None] * (COLUMNS + 2 * REACH) + torch.arange(CROP)
        rays = steps[:, None, :] * torch.arange(1, RAY + 1)[:, None]
        cells = torch.arange(ROWS)[:, None] * (2 * COLUMNS - 1) + torch.arange(COLUMNS)
        buffers = {
            "tokens": torch.from_numpy(tokens),
            "kinds": torch.from_numpy(kinds),
            "near": near.flatten(),
            "neighbours": (steps[:, 0] + REACH) * CROP + steps[:, 1] + REACH,
            "rays": (rays[..., 0] * (COLUMNS + 2 * RAY) + rays[..., 1]).flatten(),
            "cells": cells.flatten(),
            "patches": find_patches(),
            "status_scale": _status_scale(),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)
        self.token_vectors = nn.Embedding(self.outside + 1, TOKEN_SIZE)
        width = len(DIRECTIONS) * SECTOR + BUCKETS + STATUS_SIZE + 5
        self.crop_layer = orthogonal(nn.Linear(CROP * CROP * TOKEN_SIZE, hidden_size))
        self.input_layer = orthogonal(nn.Linear(width, hidden_size))
        self.trunk = nn.Sequential(nn.ReLU())
        for _ in range(num_layers):
            self.trunk.append(orthogonal(nn.Linear(hidden_size, hidden_size)))
            self.trunk.append(nn.ReLU())

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            fields = unpack_tensors(self.layout, rows)
            named = dict(zip((leaf.name for leaf in self.layout.leaves), fields, strict=True))
            glyphs, status = named["glyphs"].flatten(1).int(), named["blstats"]
            column = status[:, nh.NLE_BL_X].clamp(0, COLUMNS - 1)
            row = status[:, nh.NLE_BL_Y].clamp(0, ROWS - 1)
            kinds = self.kinds.index_select(0, glyphs.view(-1)).view(glyphs.shape)
            sectors = self.look_around(kinds, row, column)
            rays = self.look_along(kinds, row, column)
            inputs = torch.cat(
                [
                    sectors.flatten(1),
                    read_message(named["message"]),
                    self.read_status(status),
                    point_at(kinds == STAIRS_DOWN, row, column),
                ],
                1,
            )
            crop = self.look_close(glyphs, row, column)
        near = self.token_vectors(crop)
        hidden = self.trunk(self.crop_layer(near.flatten(1)) + self.input_layer(inputs))
        return hidden, torch.cat([sectors, rays, near[:, self.neighbours]], 2)

    def look_close(self, glyphs: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """Tokens of the cells around the hero [B, CROP²]."""
        tokens = self.tokens.index_select(0, glyphs.view(-1)).view(-1, ROWS, COLUMNS)
        padded = functional.pad(tokens, (REACH,) * 4, value=self.outside).flatten(1)
        corner = row * (COLUMNS + 2 * REACH) + column
        return padded.gather(1, corner[:, None] + self.near).int()

    def look_along(self, kinds: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """The kinds of the cells on each ray, one-hot [B, 8, RAY * KINDS]."""
        padded = functional.pad(kinds.view(-1, ROWS, COLUMNS), (RAY,) * 4, value=OUTSIDE)
        centre = (row + RAY) * (COLUMNS + 2 * RAY) + column + RAY
        seen = padded.flatten(1).gather(1, centre[:, None] + self.rays)
        one_hot = functional.one_hot(seen.long(), len(KINDS)).float()
        return one_hot.view(len(kinds), len(DIRECTIONS), -1)

    def look_around(self, kinds: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """How many cells of each kind lie in each patch, as log(1 + n) [B, 8, SECTOR]."""
        corner = (ROWS - 1 - row) * (2 * COLUMNS - 1) + COLUMNS - 1 - column
        cells = (corner[:, None] + self.cells).view(-1)
        index = (self.patches.index_select(0, cells).view(kinds.shape) + kinds).long()
        counts = torch.zeros(len(kinds), HERO + len(KINDS), device=kinds.device)
        one = torch.ones((), device=kinds.device).expand(index.shape)
        return counts.scatter_add_(1, index, one)[:, :HERO].log1p().view(len(kinds), -1, SECTOR)

    def read_status(self, status: Tensor) -> Tensor:
        """The status line, each number within a few units [B, STATUS_SIZE]."""
        numbers = status.float()
        hunger = functional.one_hot(status[:, nh.NLE_BL_HUNGER].clamp(0, 6), 7)
        burden = functional.one_hot(status[:, nh.NLE_BL_CAP].clamp(0, 5), 6)
        bits = torch.arange(CONDITIONS, device=status.device)
        conditions = (status[:, nh.NLE_BL_CONDITION, None] >> bits) & 1
        health = numbers[:, nh.NLE_BL_HP] / numbers[:, nh.NLE_BL_HPMAX].clamp(min=1)
        parts = [
            numbers * self.status_scale,
            numbers.sign() * numbers.abs().log1p() * 0.2,
            health[:, None],
            hunger.float(),
            burden.float(),
            conditions.float(),
        ]
        return torch.cat(parts, 1)


def read_message(message: Tensor) -> Tensor:
    """Which hashed trigrams of characters a message [B, 256] has [B, BUCKETS]."""
    text = message[:, :MESSAGE_LENGTH].int()
    code = (text[:, :-2] << 16) | (text[:, 1:-1] << 8) | text[:, 2:]
    # Knuth's multiplicative hash; the bits in the middle depend on all three characters.
    bucket = ((code.long() * 2654435761) >> 20) % BUCKETS
    bag = torch.zeros(len(message), BUCKETS, device=message.device)
    # Where the padding shares a bucket with a trigram, either may be written; so nothing is unset.
    return bag.scatter_add_(1, bucket, (code > 0).float()).clamp_(max=1)


def point_at(there: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Where the first cell that is `there` [B, CELLS] lies from the hero: known, signs, log
    distances [B, 5]."""
    cell = there.to(torch.uint8).argmax(1)
    known = there.gather(1, cell[:, None]).float()
    down = (cell // COLUMNS - row).float()
    right = (cell % COLUMNS - column).float()
    steps = torch.stack([down, right], 1)
    return torch.cat([known, known * steps.sign(), known * steps.abs().log1p()], 1)


def find_patches() -> Tensor:
    """Where the counts of the patch begin in which a cell lies, by its offset from the hero
    [(2 * ROWS - 1) * (2 * COLUMNS - 1)] int32."""
    down, right = np.mgrid[1 - ROWS : ROWS, 1 - COLUMNS : COLUMNS]
    units = np.array(DIRECTIONS) / np.linalg.norm(DIRECTIONS, axis=1)[:, None]
    sector = (units[:, 0, None, None] * down + units[:, 1, None, None] * right).argmax(0)
    distance = np.maximum(np.abs(down), np.abs(right))
    ring = np.searchsorted(RINGS, distance, side="right") - 1
    patch = np.where(distance == 0, HERO, sector * SECTOR + ring * len(KINDS))
    return torch.from_numpy(patch.astype(np.int32).ravel())


def classify_glyphs() -> tuple[np.ndarray, np.ndarray]:
    """For each glyph its token (uint8: map symbols one by one, monsters by letter, objects by
    class) and its kind (int32, an index into KINDS)."""
    objects, symbols = nh.MAXMCLASSES, nh.MAXMCLASSES + nh.MAXOCLASSES
    pet = symbols + nh.GLYPH_EXPLODE_OFF - nh.GLYPH_CMAP_OFF
    body, statue, other = pet + 1, pet + 2, pet + 3
    tokens = np.full(nh.MAX_GLYPH + 1, other, np.uint8)
    kinds = np.full(nh.MAX_GLYPH + 1, KINDS.index("feature"), np.int32)
    steps, names = list(SYMBOL_KINDS), list(SYMBOL_KINDS.values())
    for glyph in range(nh.MAX_GLYPH):
        token, kind = other, "feature"
        if nh.glyph_is_pet(glyph):
            token, kind = pet, "pet"
        elif nh.glyph_is_body(glyph):
            token, kind = body, "object"
        elif nh.glyph_is_statue(glyph):
            token, kind = statue, "object"
        elif nh.glyph_is_monster(glyph):
            token, kind = ord(nh.permonst(nh.glyph_to_mon(glyph)).mlet), "monster"
        elif nh.glyph_is_normal_object(glyph):
            category = ord(nh.objclass(nh.glyph_to_obj(glyph)).oc_class)
            token = objects + category
            kind = "gold" if category == nh.COIN_CLASS else "object"
        elif nh.GLYPH_CMAP_OFF <= glyph < nh.GLYPH_EXPLODE_OFF:
            symbol = glyph - nh.GLYPH_CMAP_OFF
            token = symbols + symbol
            if symbol <= steps[-1]:
                kind = names[int(np.searchsorted(steps, symbol))]
        elif nh.glyph_is_invisible(glyph):
            kind = "monster"
        tokens[glyph], kinds[glyph] = token, KINDS.index(kind)
    return tokens, kinds


def _status_scale() -> Tensor:
    """Factors that bring the numbers of the status line near 1; 0 for those that only count as
    logarithm, bit or category."""
    scale = torch.zeros(nh.NLE_BLSTATS_SIZE)
    scale[nh.NLE_BL_X], scale[nh.NLE_BL_Y] = 1 / COLUMNS, 1 / ROWS
    for name in ("STR25", "DEX", "CON", "INT", "WIS", "CHA"):
        scale[getattr(nh, f"NLE_BL_{name}")] = 1 / 25
    for name, largest in {"STR125": 125, "AC": 10, "DEPTH": 10, "HP": 50, "XP": 10}.items():
        scale[getattr(nh, f"NLE_BL_{name}")] = 1 / largest
    return scale


def _check_space(space: spaces.Box) -> Layout:
    layout = space.layout if isinstance(space, PackedBox) else None
    found = {leaf.name: leaf.shape for leaf in layout.leaves} if layout else {}
    if layout is None or any(found.get(name) != shape for name, shape in FIELDS.items()):
        raise APIUsageError(
            f"NetHackPolicy needs the observation keys {', '.join(FIELDS)} of nethack, got "
            f"{', '.join(found) or space}; add them, or use policy.name Default"
        )
    return layout
