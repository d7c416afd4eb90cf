"""The model of a sensor array: a convolutional branch for each face, a transformer that fuses them, heads by objective.

It takes values as they lie in the files; normalisation and index maps are buffers. An invalid channel and a hidden one look
the same: its value is 0, and so is the flag beside it that says whether it is valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from holdfast.train.sensors.array import Face, SensorArray, Target

_TOKENS = 32  # of a face, at most about
_HEAD = 16  # features of an attention head, about
FILLED = "filled"  # the head that gives the values of all channels


class SensorModel(nn.Module):
    """Encoder and heads. Returns the outputs of the heads by name, and for reconstruction what it is compared with."""

    def __init__(self, array: SensorArray, targets: Sequence[Target], *, width: int, depth: int) -> None:
        super().__init__()
        self.normalise = Normalise(array)
        self.encoder = Encoder(array, width, depth)
        self.heads: nn.ModuleDict = nn.ModuleDict(
            {target.name: TargetHead(target, width) for target in targets} or {FILLED: FillHead(array, self.encoder, width)}
        )

    def forward(self, values: torch.Tensor, hidden: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """From B×channels×sensors; `hidden` B×sensors are the channels that it must not see."""
        normal, valid = self.normalise(values)
        seen = valid if hidden is None else valid & ~hidden[:, None]
        return self.predict(normal * seen, seen) | ({"truth": normal, "valid": valid} if FILLED in self.heads else {})

    def predict(self, normal: torch.Tensor, seen: torch.Tensor) -> dict[str, torch.Tensor]:
        """The outputs of all heads, normalised, from normalised values and which of them are seen."""
        maps, tokens = self.encoder(torch.cat([normal, seen.to(normal.dtype)], dim=1))
        return {name: head(maps, tokens) for name, head in self.heads.items()}


class Normalise(nn.Module):
    """Transform, shift and scale each channel; invalid values become 0."""

    offset: torch.Tensor
    scale: torch.Tensor
    invalid: torch.Tensor

    def __init__(self, array: SensorArray) -> None:
        super().__init__()
        self.transforms = tuple(channel.transform for channel in array.channels)
        values = {
            "offset": [channel.offset or 0.0 for channel in array.channels],
            "scale": [channel.scale or 1.0 for channel in array.channels],
            "invalid": [channel.invalid if channel.invalid is not None else float("nan") for channel in array.channels],
        }
        for name, some in values.items():
            self.register_buffer(name, torch.tensor(some)[:, None], persistent=False)

    def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised values, and which of them are valid."""
        values = values.float()
        valid = (values.abs() < float("inf")) & (values != self.invalid)  # NaN is not smaller than anything
        clean = torch.where(valid, values, torch.zeros_like(values))
        if any(transform != "none" for transform in self.transforms):
            clean = torch.stack(
                [_transform(clean[:, place], transform) for place, transform in enumerate(self.transforms)], dim=1
            )
        return (clean - self.offset) / self.scale * valid, valid

    def invert(self, normal: torch.Tensor) -> torch.Tensor:
        """Values as they lie in the files."""
        values = normal * self.scale + self.offset
        return torch.stack([_inverse(values[:, place], transform) for place, transform in enumerate(self.transforms)], dim=1)


def _transform(values: torch.Tensor, kind: str) -> torch.Tensor:
    if kind in ("log1p", "sqrt"):
        values = values.clamp(min=0)
    return (
        values.log1p() if kind == "log1p" else values.sqrt() if kind == "sqrt" else values.asinh() if kind == "asinh" else values
    )


def _inverse(values: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "log1p":
        return values.expm1()
    return values.clamp(min=0).square() if kind == "sqrt" else values.sinh() if kind == "asinh" else values


class Encoder(nn.Module):
    """All faces as tokens, fused; the first token is that of the event."""

    def __init__(self, array: SensorArray, width: int, depth: int) -> None:
        super().__init__()
        channels = 2 * len(array.channels)
        made: list[FaceBranch | SetBranch] = [
            SetBranch(face, channels, width) if face.kind == "set" else FaceBranch(face, channels, width) for face in array.faces
        ]
        self.faces = nn.ModuleList(made)
        self.event = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, sum(branch.tokens for branch in made), width))
        self.sizes = [branch.tokens for branch in made]
        self.layers = nn.ModuleList([Layer(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)

    def forward(self, inputs: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The features of each face at full resolution, and all tokens."""
        maps, tokens = zip(*[face(inputs) for face in self.faces], strict=True)
        fused = torch.cat([self.event.expand(inputs.shape[0], -1, -1), torch.cat(tokens, dim=1) + self.place], dim=1)
        for layer in self.layers:
            fused = layer(fused)
        return list(maps), self.norm(fused)


class Layer(nn.Module):
    """A layer of the transformer, normalised first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // _HEAD) if width % _HEAD == 0 else 1
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Attention, then two linear layers for each token."""
        split: Any = self.qkv(self.before(tokens))
        query, key, value = split.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        tokens = tokens + self.out(attended)
        result: torch.Tensor = tokens + self.mlp(self.between(tokens))
        return result


class Gathered(nn.Module):
    """A face of the array: the values of its cells, 0 where a cell is empty."""

    index: torch.Tensor
    filled: torch.Tensor

    def __init__(self, face: Face) -> None:
        super().__init__()
        cells = axial(face) if face.kind == "hex" else torch.from_numpy(face.index)
        self.shape = tuple(cells.shape)
        self.register_buffer("index", cells.reshape(-1).clamp(min=0), persistent=False)
        self.register_buffer("filled", (cells >= 0).float(), persistent=False)
        self.full = bool((cells >= 0).all())

    def cells(self, inputs: torch.Tensor) -> torch.Tensor:
        """B×channels×cells."""
        values = inputs.index_select(2, self.index).reshape(inputs.shape[0], inputs.shape[1], *self.shape)
        return values if self.full else values * self.filled


class FaceBranch(Gathered):
    """Convolutions over a grid or hexagonal face, down to a few tokens."""

    def __init__(self, face: Face, channels: int, width: int) -> None:
        super().__init__(face)
        narrow, hexagonal = max(8, width // 2), face.kind == "hex"
        self.stem = Convolution(channels, narrow, hexagonal)
        steps: list[nn.Module] = []
        height, across = self.shape
        while height * across > _TOKENS:
            steps.append(Convolution(narrow if not steps else width, width, hexagonal, stride=2))
            height, across = (height + 1) // 2, (across + 1) // 2
        self.steps = nn.Sequential(*steps, Convolution(width if steps else narrow, width, hexagonal))
        self.coarse = (height, across)
        self.tokens, self.features = height * across, narrow

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of every cell B×F×H×W, and tokens."""
        features = self.stem(self.cells(inputs))
        return features, self.steps(features).flatten(2).transpose(1, 2)


class SetBranch(Gathered):
    """Channels without neighbours: some of them together are a token."""

    def __init__(self, face: Face, channels: int, width: int) -> None:
        super().__init__(face)
        count = self.shape[0]
        self.together = -(-count // _TOKENS)
        self.tokens, self.features = -(-count // self.together), channels
        self.missing = self.tokens * self.together - count
        self.embed = nn.Linear(channels * self.together, width)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The channels B×F×N, and tokens."""
        cells = self.cells(inputs)
        groups: Any = F.pad(cells, (0, self.missing))
        groups = groups.unflatten(2, (self.tokens, self.together))
        return cells, self.embed(groups.permute(0, 2, 1, 3).flatten(2))


class Convolution(nn.Module):
    """3×3 convolution, normalised over groups (any batch size), GELU. A hexagonal cell has six neighbours: two weights are 0."""

    neighbours: torch.Tensor

    def __init__(self, channels: int, width: int, hexagonal: bool, stride: int = 1) -> None:
        super().__init__()
        self.conv, self.hexagonal, self.stride = nn.Conv2d(channels, width, 3, stride, padding=1), hexagonal, stride
        self.norm = nn.GroupNorm(max(1, width // 16), width)
        kernel = torch.ones(3, 3)
        kernel[0, 0] = kernel[2, 2] = 0.0
        self.register_buffer("neighbours", kernel, persistent=False)

    def forward(self, cells: torch.Tensor) -> torch.Tensor:
        """The same grid, or every second cell of it."""
        if self.hexagonal:
            cells = F.conv2d(cells, self.conv.weight * self.neighbours, self.conv.bias, self.stride, padding=1)
        else:
            cells = self.conv(cells)
        return F.gelu(self.norm(cells))


class TargetHead(nn.Module):
    """One target: its values, normalised, from the token of the event and the mean of all others."""

    def __init__(self, target: Target, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, target.size))

    def forward(self, _: list[torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
        """B×values."""
        result: torch.Tensor = self.mlp(torch.cat([tokens[:, 0], tokens[:, 1:].mean(dim=1)], dim=-1))
        return result


class FillHead(nn.Module):
    """The values of all channels: the tokens of each face spread over its cells, beside what the face has there."""

    cell: torch.Tensor

    def __init__(self, array: SensorArray, encoder: Encoder, width: int) -> None:
        super().__init__()
        self.sizes, count = list(encoder.sizes), len(array.channels)
        self.spread, self.last, self.grids = nn.ModuleList(), nn.ModuleList(), []
        cells, before = torch.zeros(array.sensors, dtype=torch.int64), 0
        for face, branch in zip(array.faces, encoder.faces, strict=True):
            assert isinstance(branch, (FaceBranch, SetBranch))
            shown = axial(face) if face.kind == "hex" else torch.from_numpy(face.index)
            flat = shown.reshape(-1)
            cells[flat[flat >= 0]] = before + torch.arange(len(flat))[flat >= 0]
            before += len(flat)
            if isinstance(branch, SetBranch):
                self.grids.append((branch.together, branch.missing))
                self.spread.append(nn.Linear(width, branch.together * count))
                self.last.append(nn.Conv1d(count + branch.features, count, 1))
            else:
                self.grids.append(branch.coarse)
                self.spread.append(nn.Conv2d(width, branch.features, 1))
                joined = Convolution(2 * branch.features, branch.features, face.kind == "hex")
                self.last.append(nn.Sequential(joined, nn.Conv2d(branch.features, count, 1)))
        self.count = count
        self.register_buffer("cell", cells, persistent=False)

    def forward(self, maps: list[torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
        """B×channels×sensors, normalised."""
        made = []
        faces = zip(maps, torch.split(tokens[:, 1:], self.sizes, dim=1), self.grids, self.spread, self.last, strict=True)
        for features, some, grid, spread, last in faces:
            if features.ndim == 3:
                wide = spread(some).unflatten(2, (self.count, grid[0])).transpose(1, 2).flatten(2)
                made.append(last(torch.cat([wide[..., : features.shape[2]], features], dim=1)))
            else:
                coarse = spread(some.transpose(1, 2).reshape(-1, some.shape[2], *grid))
                wide = F.interpolate(coarse, size=features.shape[2:], mode="nearest")
                made.append(last(torch.cat([wide, features], dim=1)).flatten(2))
        return torch.cat(made, dim=2).index_select(2, self.cell)


def axial(face: Face) -> torch.Tensor:
    """A hexagonal face, whose odd rows lie half a cell to the right, skewed: a neighbour is at the same distance in every row."""
    rows, columns = face.index.shape
    cells = torch.full((rows, columns + rows // 2), -1, dtype=torch.int64)
    for row in range(rows):
        first = (rows - 1) // 2 - row // 2
        cells[row, first : first + columns] = torch.from_numpy(face.index[row])
    return cells
