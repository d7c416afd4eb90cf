"""A checkpoint in a few facts: how far the training was, how good, what can be restored from it, with which settings."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoints.contents import Contents, Opaque, TensorInfo
from holdfast.checkpoints.facts import facts_of, metric_of
from holdfast.checkpoints.names import ITEM_SIZES
from holdfast.checkpoints.parts import (
    MODEL_KEYS,
    Part,
    is_module,
    is_state_dict,
    module_parameters,
    module_weights,
    parts_of,
    settings_of,
)

HOLDS = ("weights", "optimizer", "scheduler", "scaler", "rng", "loader", "ema", "settings")
_CODES = {"float32": "f", "float64": "d", "float16": "e", "int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint8": "B"}
_BUFFERS = (  # how these are usually called; a state dict does not tell
    "running_mean", "running_var", "num_batches_tracked", "position_ids", "inv_freq", "masked_bias", "mask", "anchors",
    "relative_position_index",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a checkpoint is. `model_keys` are the model's own tensors with their shapes, under the names they have in it."""

    step: int | None = None
    epoch: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    metric: tuple[str, float] | None = None  # the one that says most
    saved_at: float | None = None  # seconds since 1970
    holds: frozenset[str] = frozenset()  # of HOLDS
    parameters: int = 0  # numbers in the model's parameters; tied ones once
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    model_keys: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def weights_only(self) -> bool:
        """Whether a training cannot resume from it as it was: there are weights, and nothing beside them."""
        return bool(self.holds & {"weights", "ema"}) and not self.holds & {"optimizer", "scheduler", "scaler", "rng", "loader"}

    def as_row(self) -> dict[str, Any]:
        """For --json."""
        name, value = self.metric or (None, None)
        return {
            "step": self.step,
            "epoch": self.epoch,
            "metric": {"name": name, "value": value} if name else None,
            "metrics": self.metrics,
            "saved_at": self.saved_at,
            "holds": [part for part in HOLDS if part in self.holds],
            "weights_only": self.weights_only,
            "parameters": self.parameters,
            "versions": self.versions,
        }


def summarise(contents: Contents) -> Summary:
    """The facts about an opened checkpoint. Of its tensors only those of a single number are read."""
    parts = parts_of(contents.tree)
    facts = facts_of(contents.tree, contents.path, lambda tensor: scalar_of(contents, tensor))
    weights = weights_of(contents)
    settings = _settings(parts, contents.tree)
    holds = {part.role for part in parts if part.role != "other"} | ({"weights"} if weights else set())
    return Summary(
        step=facts.step if facts.step is not None else _steps_of_optimizer(contents, parts),
        epoch=facts.epoch,
        metrics=facts.metrics,
        metric=metric_of(facts),
        saved_at=facts.saved_at if facts.saved_at is not None else contents.modified or None,
        holds=frozenset(holds - {"settings"} | ({"settings"} if settings else set())),
        parameters=_parameters(parts, weights),
        settings=settings,
        versions=dict(contents.versions),
        model_keys={name: tensor.shape for name, tensor in weights.items()},
    )


def weights_of(contents: Contents) -> dict[str, TensorInfo]:
    """The model's state dict, wherever it lies; averaged weights only where there are no others."""
    part = weights_part(contents)
    return tensors_of(part.value) if part is not None else {}


def averages_of(contents: Contents) -> dict[str, TensorInfo]:
    """The averaged weights (EMA, SWA), if the checkpoint holds any."""
    for part in parts_of(contents.tree):
        if part.role == "ema" and (largest := _largest(part)) is not None:
            return tensors_of(largest.value)
    return {}


def weights_part(contents: Contents) -> Part | None:
    """Where the model's weights lie: the keys that lead to them, and what stands there."""
    parts = parts_of(contents.tree)
    candidates = [(part, inner) for part in parts if part.role == "weights" and (inner := _largest(part)) is not None]
    named = [(part, inner) for part, inner in candidates if part.path and str(part.path[-1]) in MODEL_KEYS]
    if named:
        return min(named, key=lambda pair: (len(pair[0].path), MODEL_KEYS.index(str(pair[0].path[-1]))))[1]
    if candidates:
        return max((inner for _, inner in candidates), key=_count)
    averaged = [inner for part in parts if part.role == "ema" and (inner := _largest(part)) is not None]
    return averaged[0] if averaged else None


def tensors_of(value: Any) -> dict[str, TensorInfo]:
    """A state dict without what is no tensor, or the state dict of a module that was pickled whole."""
    if is_module(value):
        return module_weights(value)
    return {str(key): item for key, item in value.items() if isinstance(item, TensorInfo)} if isinstance(value, dict) else {}


def _largest(part: Part) -> Part | None:
    """The part itself if it is a state dict, else the largest one below it: {"model": {"state_dict": …}}."""
    return max(state_dicts(part), key=_count, default=None)


def state_dicts(part: Part, depth: int = 3) -> Iterator[Part]:
    """The state dicts and modules in a part: itself, or those below it."""
    value = part.value
    if is_state_dict(value) or is_module(value):
        yield part
        return
    if isinstance(value, Opaque):
        value = value.state
    if depth:
        entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
        for key, item in entries:
            if isinstance(item, (dict, Opaque, list)):
                yield from state_dicts(Part(part.role, (*part.path, key), item), depth - 1)


def _count(part: Part) -> int:
    return sum(tensor.count for tensor in tensors_of(part.value).values())


def _parameters(parts: list[Part], weights: dict[str, TensorInfo]) -> int:
    """A state dict does not tell parameters from buffers: what is known by its name, or holds whole numbers, is left out."""
    modules = [part.value for part in parts if part.role in ("weights", "ema") and is_module(part.value)]
    if modules:
        tensors = module_parameters(modules[0])
    else:
        tensors = [tensor for name, tensor in weights.items() if not name.endswith(_BUFFERS)]
        tensors = [tensor for tensor in tensors if "float" in tensor.dtype or "complex" in tensor.dtype] or tensors
    return sum({tensor.place: tensor.count for tensor in tensors}.values())


def _settings(parts: list[Part], tree: Any) -> dict[str, Any]:
    """All settings that are in it, under one roof; of two with the same name the first."""
    settings: dict[str, Any] = {}
    manifest = tree.get("manifest") if isinstance(tree, dict) else None
    tables = [manifest.get("settings")] if isinstance(manifest, dict) else []
    for table in (*tables, *(part.value for part in parts if part.role == "settings")):
        for key, value in (settings_of(table) or {}).items():
            settings.setdefault(key, value)
    return settings


def _steps_of_optimizer(contents: Contents, parts: list[Part]) -> int | None:
    """The steps that the optimizer counted itself, where nothing else tells them."""
    for part in parts:
        if part.role != "optimizer":
            continue
        table = part.value[0] if isinstance(part.value, (list, tuple)) and part.value else part.value
        state = table.get("state") if isinstance(table, dict) else None
        for entry in list(state.values())[:1] if isinstance(state, dict) else ():
            count = entry.get("step") if isinstance(entry, dict) else None
            value = scalar_of(contents, count) if isinstance(count, TensorInfo) else count
            if isinstance(value, (int, float)) and 0 <= value < 1e15:
                return int(value)
    return None


def scalar_of(contents: Contents, tensor: TensorInfo) -> float | None:
    """The value of a tensor of a single number; None if it cannot be read."""
    size, code = ITEM_SIZES.get(tensor.dtype, 0), _CODES.get(tensor.dtype)
    if not size or (code is None and tensor.dtype != "bfloat16") or not 0 <= tensor.storage < len(contents.storages):
        return None
    storage = contents.storages[tensor.storage]
    begin = tensor.offset * size
    if begin + size > storage.size:
        return None
    try:
        data = storage.read(begin, size)
        packed = data if code else b"\0\0" + data  # a bfloat16 is the upper half of a float32
        (value,) = struct.unpack(f"<{code or 'f'}", packed)
    except (OSError, struct.error):
        return None
    return value if isinstance(value, int) else float(value)
