"""The network that plays NetHack from `glyphs`, `blstats` and `message`."""

from __future__ import annotations

import nle.nethack as nh
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from pufferlib.exceptions import APIUsageError
from pufferlib.models import Policy, orthogonal, unpack_tensors
from pufferlib.spaces import PackedBox

ROWS, COLUMNS = 21, 79
CELLS = ROWS * COLUMNS
FIELDS = {"glyphs": (ROWS, COLUMNS), "blstats": (nh.NLE_BLSTATS_SIZE,), "message": (256,)}

REACH = 4  # Cells that the crop shows in each direction.
CROP = 2 * REACH + 1
TOKEN_SIZE = 8

# Distances from the hero, in rows and in columns, at which the coarse view begins a new band.
ROW_RINGS, COLUMN_RINGS = (1, 3, 7), (1, 3, 6, 12, 25)
ROW_BANDS, COLUMN_BANDS = 2 * len(ROW_RINGS) + 1, 2 * len(COLUMN_RINGS) + 1

MESSAGE_LENGTH = 96  # Longer messages are rare, and say it at their beginning.
BUCKETS = 256

# What the coarse view tells apart.
KINDS = (
    "unseen", "floor", "corridor", "wall", "door", "stairs down", "feature", "object", "gold",
    "monster", "pet",
)  # fmt: skip
PATCHES = ROW_BANDS * COLUMN_BANDS * len(KINDS)
STAIRS_DOWN = KINDS.index("stairs down")

# Map symbols of NetHack 3.6 by their number in `defsym.h`, up to and including the given one.
SYMBOL_KINDS = {
    0: "unseen", 11: "wall", 16: "door", 18: "wall", 20: "floor", 22: "corridor", 23: "feature",
    24: "stairs down", 25: "feature", 26: "stairs down",
}  # fmt: skip


class NetHackPolicy(Policy):
    """An own encoder under Puffer's actor and critic; see `Encoder`."""

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space,
        *,
        hidden_size: int = 256,
        num_layers: int = 1,
    ):
        encoder = Encoder(observation_space, hidden_size, num_layers)
        super().__init__(action_space, encoder, hidden_size)


class Encoder(nn.Module):
    """Packed rows [B, N] → features [B, H].

    The map enters twice, both times as the hero sees it: a crop of 9 x 9 cells, each a learned
    vector, and a coarse view of the whole level that counts what lies in patches which grow with
    the distance. With the status line and the message, a bag of hashed trigrams, these are inputs
    without parameters, so one matrix product takes them all.
    """

    def __init__(self, observation_space: spaces.Box, hidden_size: int, num_layers: int):
        super().__init__()
        self.layout = _check_space(observation_space)
        tokens, kinds = classify_glyphs()
        outside = int(tokens.max()) + 1
        buffers = {
            "tokens": torch.from_numpy(tokens),
            "kinds": torch.from_numpy(kinds),
            "row_bands": _bands(ROWS, ROW_RINGS) * COLUMN_BANDS * len(KINDS),
            "column_bands": _bands(COLUMNS, COLUMN_RINGS) * len(KINDS),
            "crop": torch.arange(CROP)[:, None] * (COLUMNS + 2 * REACH) + torch.arange(CROP),
            "status_scale": _status_scale(),
        }
        for name, value in buffers.items():
            self.register_buffer(name, value, persistent=False)
        self.outside = outside
        self.token_vectors = nn.Embedding(outside + 1, TOKEN_SIZE)
        width = PATCHES + BUCKETS + STATUS_SIZE
        self.crop_layer = orthogonal(nn.Linear(CROP * CROP * TOKEN_SIZE, hidden_size))
        self.input_layer = orthogonal(nn.Linear(width, hidden_size))
        self.trunk = nn.Sequential(nn.ReLU())
        for _ in range(num_layers):
            self.trunk.append(orthogonal(nn.Linear(hidden_size, hidden_size)))
            self.trunk.append(nn.ReLU())

    def forward(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            fields = unpack_tensors(self.layout, rows)
            named = dict(zip((leaf.name for leaf in self.layout.leaves), fields, strict=True))
            glyphs = named["glyphs"].flatten(1).int()
            status = named["blstats"]
            column = status[:, nh.NLE_BL_X].clamp(0, COLUMNS - 1)
            row = status[:, nh.NLE_BL_Y].clamp(0, ROWS - 1)
            kinds = self.kinds.index_select(0, glyphs.view(-1)).view(glyphs.shape)
            inputs = torch.cat(
                [
                    self.look_around(kinds, row, column),
                    read_message(named["message"]),
                    self.read_status(status),
                    point_at(kinds == STAIRS_DOWN, row, column),
                ],
                1,
            )
            crop = self.look_close(glyphs, row, column)
        near = self.token_vectors(crop).flatten(1)
        return self.trunk(self.crop_layer(near) + self.input_layer(inputs))

    def look_close(self, glyphs: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """Tokens of the cells around the hero [B, CROP²]."""
        tokens = self.tokens.index_select(0, glyphs.view(-1)).view(-1, ROWS, COLUMNS)
        padded = functional.pad(tokens, (REACH,) * 4, value=self.outside).flatten(1)
        corner = row * (COLUMNS + 2 * REACH) + column
        return padded.gather(1, corner[:, None] + self.crop.view(1, -1)).int()

    def look_around(self, kinds: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """How many cells of each kind lie in each patch, as log(1 + n) [B, PATCHES]."""
        patch = self.row_bands[row][:, :, None] + self.column_bands[column][:, None, :]
        index = (patch.flatten(1) + kinds).long()
        counts = torch.zeros(len(kinds), PATCHES, device=kinds.device)
        one = torch.ones((), device=kinds.device).expand(index.shape)
        return counts.scatter_add_(1, index, one).log1p_()

    def read_status(self, status: Tensor) -> Tensor:
        """The status line, each number within a few units [B, STATUS_SIZE - 5]."""
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


CONDITIONS = 13
STATUS_SIZE = 2 * nh.NLE_BLSTATS_SIZE + 1 + 7 + 6 + CONDITIONS + 5


def read_message(message: Tensor) -> Tensor:
    """Which hashed trigrams of characters a message [B, 256] has [B, BUCKETS]."""
    text = message[:, :MESSAGE_LENGTH].int()
    code = (text[:, :-2] << 16) | (text[:, 1:-1] << 8) | text[:, 2:]
    # Knuth's multiplicative hash; the bits in the middle depend on all three characters.
    bucket = ((code.long() * 2654435761) >> 20) % BUCKETS
    bag = torch.zeros(len(message), BUCKETS, device=message.device)
    return bag.scatter_(1, bucket, (code > 0).float())


def point_at(there: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Where the first cell that is `there` [B, CELLS] lies from the hero: known, signs, log
    distances [B, 5]."""
    cell = there.to(torch.uint8).argmax(1)
    known = there.gather(1, cell[:, None]).float()
    down = (cell // COLUMNS - row).float()
    right = (cell % COLUMNS - column).float()
    steps = torch.stack([down, right], 1)
    return torch.cat([known, known * steps.sign(), known * steps.abs().log1p()], 1)


def classify_glyphs() -> tuple[np.ndarray, np.ndarray]:
    """For each glyph its token (uint8: map symbols one by one, monsters by letter, objects by
    class) and its kind (int32, an index into KINDS)."""
    monsters, objects, symbols = 0, nh.MAXMCLASSES, nh.MAXMCLASSES + nh.MAXOCLASSES
    pet = symbols + nh.GLYPH_EXPLODE_OFF - nh.GLYPH_CMAP_OFF
    body, statue, other = pet + 1, pet + 2, pet + 3
    tokens = np.full(nh.MAX_GLYPH + 1, other, np.uint8)
    kinds = np.full(nh.MAX_GLYPH + 1, KINDS.index("feature"), np.int32)
    steps = np.array(list(SYMBOL_KINDS))
    names = list(SYMBOL_KINDS.values())
    for glyph in range(nh.MAX_GLYPH):
        kind = "feature"
        if nh.glyph_is_pet(glyph):
            token, kind = pet, "pet"
        elif nh.glyph_is_body(glyph):
            token, kind = body, "object"
        elif nh.glyph_is_statue(glyph):
            token, kind = statue, "object"
        elif nh.glyph_is_monster(glyph):
            letter = nh.permonst(nh.glyph_to_mon(glyph)).mlet
            token, kind = monsters + ord(letter), "monster"
        elif nh.glyph_is_normal_object(glyph):
            category = ord(nh.objclass(nh.glyph_to_obj(glyph)).oc_class)
            token = objects + category
            kind = "gold" if category == nh.COIN_CLASS else "object"
        elif nh.GLYPH_CMAP_OFF <= glyph < nh.GLYPH_EXPLODE_OFF:
            symbol = glyph - nh.GLYPH_CMAP_OFF
            token = symbols + symbol
            if symbol <= steps[-1]:
                kind = names[int(np.searchsorted(steps, symbol))]
        else:
            token = other
            kind = "monster" if nh.glyph_is_invisible(glyph) else "feature"
        tokens[glyph], kinds[glyph] = token, KINDS.index(kind)
    return tokens, kinds


def _bands(size: int, rings: tuple[int, ...]) -> Tensor:
    """[size, size] int32: the band in which the second coordinate lies, seen from the first."""
    distance = np.arange(size)[None, :] - np.arange(size)[:, None]
    ring = np.searchsorted(rings, np.abs(distance), side="right")
    return torch.from_numpy((np.sign(distance) * ring + len(rings)).astype(np.int32))


def _status_scale() -> Tensor:
    """Factors that bring the numbers of the status line near 1; 0 for those that only count as
    logarithm, bit or category."""
    scale = torch.zeros(nh.NLE_BLSTATS_SIZE)
    scale[nh.NLE_BL_X], scale[nh.NLE_BL_Y] = 1 / COLUMNS, 1 / ROWS
    abilities = ("STR25", "DEX", "CON", "INT", "WIS", "CHA")
    for name in abilities:
        scale[getattr(nh, f"NLE_BL_{name}")] = 1 / 25
    for name, largest in {"STR125": 125, "AC": 10, "DEPTH": 10, "HP": 50, "XP": 10}.items():
        scale[getattr(nh, f"NLE_BL_{name}")] = 1 / largest
    return scale


def _check_space(space: spaces.Box):
    layout = space.layout if isinstance(space, PackedBox) else None
    found = {leaf.name: leaf.shape for leaf in layout.leaves} if layout else {}
    if layout is None or any(found.get(name) != shape for name, shape in FIELDS.items()):
        raise APIUsageError(
            f"NetHackPolicy needs the observation keys {', '.join(FIELDS)} of nethack, got "
            f"{', '.join(found) or space}; add them, or use policy.name Default"
        )
    return layout
