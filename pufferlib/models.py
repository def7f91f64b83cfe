"""Policies: an encoder turns observations into features, heads into actions and values."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from pufferlib.exceptions import APIUsageError
from pufferlib.spaces import Layout, PackedBox

MAX_ONE_HOT = 256  # A discrete field with more choices than this enters as a number.


class Policy(nn.Module):
    """An encoder [B, *O] → [B, H] with an actor and a critic on top.

    `forward(observations)` → (parameters [B, P] of the action distribution, values [B]). The two
    are one matrix product; `distribution` says what the parameters mean.
    """

    def __init__(self, action_space: spaces.Space, encoder: nn.Module, hidden_size: int):
        super().__init__()
        self.distribution = make_distribution(action_space)
        self.encoder = encoder
        self.head = nn.Linear(hidden_size, self.distribution.num_outputs + 1)
        with torch.no_grad():
            nn.init.orthogonal_(self.head.weight[:-1], 0.01)
            nn.init.orthogonal_(self.head.weight[-1:], 1.0)
            self.head.bias.zero_()
        if isinstance(self.distribution, Gaussian):
            self.log_std = nn.Parameter(torch.zeros(self.distribution.num_outputs))

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        sizes = [self.distribution.num_outputs, 1]
        parameters, values = self.head(self.encoder(observations)).split(sizes, 1)
        if isinstance(self.distribution, Gaussian):
            parameters = torch.cat([parameters, self.log_std.expand_as(parameters)], 1)
        return parameters, values.squeeze(1)


class Default(Policy):
    """A multilayer perceptron over any packed space, every field flattened as `Flatten` does."""

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space,
        *,
        hidden_size: int = 128,
        num_layers: int = 1,
    ):
        flatten = Flatten(observation_space)
        layers: list[nn.Module] = [flatten]
        width = flatten.size
        for _ in range(num_layers):
            layers += [orthogonal(nn.Linear(width, hidden_size)), nn.ReLU(inplace=True)]
            width = hidden_size
        super().__init__(action_space, nn.Sequential(*layers), width)


class Convolutional(Policy):
    """The network of Mnih et al. 2015 ("Human-level control…") over one image.

    Images are [height, width, channels] if `channels_last`, else [channels, height, width], at
    least 36 pixels a side.
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        action_space: spaces.Space,
        *,
        hidden_size: int = 512,
        channels_last: bool = True,
    ):
        shape = observation_space.shape
        if len(shape) != 3 or isinstance(observation_space, PackedBox):
            raise APIUsageError(
                f"Convolutional takes one image of three axes, got {observation_space}; "
                "use Default, or a policy of your own"
            )
        channels, height, width = (shape[2], *shape[:2]) if channels_last else shape
        if min(height, width) < 36:
            raise APIUsageError(
                f"Convolutional needs images of at least 36 x 36 pixels, got {height} x {width}"
            )
        trunk = nn.Sequential(
            ImageInput(observation_space, channels_last=channels_last),
            orthogonal(nn.Conv2d(channels, 32, 8, stride=4)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3)),
            nn.ReLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            size = trunk(torch.zeros(1, *shape)).shape[1]
        trunk.extend([orthogonal(nn.Linear(size, hidden_size)), nn.ReLU()])
        super().__init__(action_space, trunk, hidden_size)


def orthogonal(layer: nn.Linear | nn.Conv2d) -> nn.Linear | nn.Conv2d:
    """`layer` with orthogonal weights for a ReLU behind it, and no bias."""
    nn.init.orthogonal_(layer.weight, math.sqrt(2))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


# ---------------------------------------------------------------- inputs


def scale_image(pixels: Tensor) -> Tensor:
    """Bytes 0…255 as floats 0…1. The only place where observations are scaled."""
    return pixels.to(torch.get_default_dtype()) / 255.0


def is_image(dtype: np.dtype, shape: tuple[int, ...], kind: str = "continuous") -> bool:
    """Whether a field is scaled as an image: unsigned bytes of two or three axes."""
    return dtype == np.uint8 and len(shape) in (2, 3) and kind == "continuous"


def spans_bytes(space: spaces.Box) -> bool:
    """Whether the elements go up to 255; a grid of a few cell kinds does not, and is no image."""
    return bool((space.high == 255).any())


class ImageInput(nn.Module):
    """Images [B, …] of any dtype → floats [B, channels, height, width]; bytes become 0…1."""

    def __init__(self, space: spaces.Box, *, channels_last: bool):
        super().__init__()
        self.scale = is_image(np.dtype(space.dtype), space.shape) and spans_bytes(space)
        self.channels_last = channels_last

    def forward(self, images: Tensor) -> Tensor:
        if self.channels_last:
            images = images.permute(0, 3, 1, 2)
        return scale_image(images) if self.scale else images.to(torch.get_default_dtype())


class Flatten(nn.Module):
    """Rows of a packed space [B, *O] → one float vector each [B, size].

    Image bytes are scaled, discrete elements become one-hot, all else is cast and never scaled.
    """

    def __init__(self, space: spaces.Box):
        super().__init__()
        self.layout = space.layout if isinstance(space, PackedBox) else None
        image = is_image(np.dtype(space.dtype), space.shape) and spans_bytes(space)
        self.scale = self.layout is None and image
        self.size = (
            sum(_vector_size(leaf) for leaf in self.layout.leaves)
            if self.layout is not None
            else int(np.prod(space.shape))
        )

    def forward(self, rows: Tensor) -> Tensor:
        if self.layout is None:
            rows = scale_image(rows) if self.scale else rows.to(torch.get_default_dtype())
            return rows.flatten(1)
        fields = unpack_tensors(self.layout, rows)
        parts = [_vector(leaf, x) for leaf, x in zip(self.layout.leaves, fields, strict=True)]
        return torch.cat(parts, 1)


def unpack_tensors(layout: Layout, rows: Tensor) -> list[Tensor]:
    """Packed rows [B, *row] as one tensor for each leaf [B, *leaf.shape], in their own dtypes.

    Views where the layout allows it; nothing is scaled or cast.
    """
    rows = rows.reshape(rows.shape[0], -1)
    step = layout.dtype.itemsize
    fields = []
    for leaf in layout.leaves:
        columns = rows[:, leaf.offset // step : (leaf.offset + leaf.nbytes) // step]
        dtype = getattr(torch, str(leaf.dtype))
        if columns.dtype != dtype:
            columns = columns.view(dtype)
        fields.append(columns.reshape(rows.shape[0], *leaf.shape))
    return fields


def _vector_size(leaf) -> int:
    if leaf.kind != "discrete":
        return leaf.size
    return sum(n if n <= MAX_ONE_HOT else 1 for n in leaf.n)


def _vector(leaf, values: Tensor) -> Tensor:
    if leaf.kind != "discrete":
        scale = is_image(leaf.dtype, leaf.shape)
        return (scale_image(values) if scale else values.to(torch.get_default_dtype())).flatten(1)
    parts = []
    columns = values.reshape(len(values), -1).long().unbind(1)
    for column, n, start in zip(columns, leaf.n, leaf.start, strict=True):
        one_hot = functional.one_hot(column - start, n) if n <= MAX_ONE_HOT else column[:, None]
        parts.append(one_hot.to(torch.get_default_dtype()))
    return torch.cat(parts, 1)


# ---------------------------------------------------------------- action distributions


class Categorical:
    """Independent discrete components; `sizes` choices each, which need not be equal.

    Parameters are logits [B, sum(sizes)], actions int32 [B, D].
    """

    def __init__(self, sizes: list[int]):
        self.sizes = sizes
        self.num_outputs = self.num_parameters = self.num_noise = sum(sizes)
        self.action_shape = (len(sizes),)
        self.action_dtype = torch.int32

    def draw_noise(self, noise: Tensor, generator: torch.Generator) -> None:
        """Fill noise [..., num_noise] with standard Gumbel samples."""
        noise.uniform_(generator=generator).log_().neg_().log_().neg_()

    def sample(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Actions [B, D]: the largest logit plus Gumbel noise, which is a softmax sample (Maddison
        et al. 2014, "A* sampling"); the same noise gives the same actions."""
        return self.best(logits + noise)

    def best(self, logits: Tensor) -> Tensor:
        """The likeliest actions [B, D]."""
        if len(self.sizes) == 1:
            return logits.argmax(1, keepdim=True)
        pieces = logits.split(self.sizes, 1)
        return torch.cat([piece.argmax(1, keepdim=True) for piece in pieces], 1)

    def evaluate(self, logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [B], sums over the components."""
        logprobs, entropies = [], []
        columns = actions.long().split(1, 1)
        for piece, action in zip(logits.split(self.sizes, 1), columns, strict=True):
            logp = functional.log_softmax(piece, 1)
            logprobs.append(logp.gather(1, action).squeeze(1))
            entropies.append(-(logp.exp() * logp).sum(1))
        return reduce(torch.add, logprobs), reduce(torch.add, entropies)


class Gaussian:
    """Independent normal components; parameters [B, 2D] are means and log standard deviations.

    Actions are the raw samples, float32 [B, D]; whoever steps the environment cuts them to its
    bounds, so that a stored action and its log-probability belong together.
    """

    def __init__(self, size: int):
        self.num_outputs = self.num_noise = size
        self.num_parameters = 2 * size
        self.action_shape = (size,)
        self.action_dtype = torch.float32

    def draw_noise(self, noise: Tensor, generator: torch.Generator) -> None:
        """Fill noise [..., num_noise] with standard normal samples."""
        noise.normal_(generator=generator)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        """Actions [B, D]."""
        mean, log_std = parameters.chunk(2, 1)
        return mean + log_std.exp() * noise

    def best(self, parameters: Tensor) -> Tensor:
        """The likeliest actions [B, D]: the means."""
        return parameters.chunk(2, 1)[0]

    def evaluate(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [B], sums over the components."""
        mean, log_std = parameters.chunk(2, 1)
        distance = (actions - mean) * (-log_std).exp()
        logp = -0.5 * distance.square() - log_std - 0.5 * math.log(2 * math.pi)
        entropy = log_std + 0.5 * math.log(2 * math.pi * math.e)
        return logp.sum(1), entropy.sum(1)


def make_distribution(space: spaces.Space) -> Categorical | Gaussian:
    """The distribution over a single action space; raises APIUsageError for any other kind."""
    if isinstance(space, spaces.Discrete):
        return Categorical([int(space.n)])
    if isinstance(space, spaces.MultiDiscrete):
        return Categorical([int(n) for n in space.nvec.reshape(-1)])
    if isinstance(space, spaces.Box):
        return Gaussian(int(np.prod(space.shape)))
    raise APIUsageError(
        f"no action distribution for a {type(space).__name__}; expected Discrete, MultiDiscrete or "
        "Box (pufferlib.emulation flattens other action spaces to these)"
    )


def find_policy(name: str, module=None) -> Callable[..., nn.Module]:
    """The policy class `name` of an environment's own `module`, else of this one."""
    found = getattr(module, name, None) or globals().get(name)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        known = [n for n, v in globals().items() if isinstance(v, type) and issubclass(v, Policy)]
        raise APIUsageError(f"no policy {name!r}; expected one of {', '.join(known)}")
    return found
