"""What the parts of a checkpoint are for: weights, optimizer, scheduler, gradient scaler, random state, loader, averaged weights.

Told from the names that trainers and people give them, and from what stands under them. The tree is walked, never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.checkpoints.contents import Opaque, TensorInfo

Role = Literal["weights", "optimizer", "scheduler", "scaler", "rng", "loader", "ema", "settings", "other"]

MODEL_KEYS = ("state_dict", "model_state_dict", "model", "model_state", "module", "net", "network", "weights", "params")
_NAMES: tuple[tuple[Role, re.Pattern[str]], ...] = (
    ("scheduler", re.compile(r"sched", re.I)),
    ("optimizer", re.compile(r"optim|^opt(_|s?$)|^opt_?state", re.I)),
    ("scaler", re.compile(r"scaler|mixed_?precision|^amp(_|$)", re.I)),
    ("rng", re.compile(r"(^|_)rng|random|(^|_)generator_state", re.I)),
    ("loader", re.compile(r"loader|sampler|^dataset_state|^data_?(position|iter|state)", re.I)),
    ("ema", re.compile(r"(^|_)ema(_|$)|ema_(model|state)|averag|(^|_)swa(_|$)|shadow|teacher", re.I)),
    (
        "settings",
        re.compile(
            r"^(hyper_?param(eter)?s|h_?params|args|arguments|cfg|configs?|settings|options|opts?|train(ing)?_(args|config)"
            r"|model_(args|config|kwargs)|config_\w+|adapter_config|generation_config)$",
            re.I,
        ),
    ),
)
_BOOKKEEPING = re.compile(
    r"^(callbacks|loops|meta|history|hist|log\w*|metrics?|results?|scores?|best\w*|stats|statistics|monitor\w*|manifest|trainer_state"
    r"|train_(metrics|results)|(val|valid|test|train|eval)_\w+|\w*loss\w*|acc\w*|__metadata__|counters?|progress)$",
    re.I,
)
_INSIDE = (
    "training", "state", "trainer", "extra_state", "train_state", "training_state", "app", "checkpoint", "ckpt", "snapshot",
)  # fmt: skip
_DEEPEST = 3  # dicts around the parts
_FEW_WEIGHTS = 2  # tensors that a dict holds at least to be taken for a state dict by its looks


@dataclass(frozen=True, slots=True)
class Part:
    """A part: what it is for, the keys that lead to it, and what stands there."""

    role: Role
    path: tuple[Any, ...]
    value: Any


def parts_of(tree: Any) -> list[Part]:
    """The parts of a checkpoint. One that is a state dict or a module as a whole is one part."""
    if isinstance(tree, Opaque) or is_state_dict(tree):
        return [Part("weights", (), tree)]
    return list(_parts(tree, ())) if isinstance(tree, dict) else []


def _parts(table: dict[Any, Any], path: tuple[Any, ...]) -> Iterator[Part]:
    for key, value in table.items():
        name = str(key)
        if isinstance(value, dict) and len(path) < _DEEPEST and _is_bracket(name, value):
            yield from _parts(value, (*path, key))
        else:
            yield Part(_role(name, value), (*path, key), value)


def _is_bracket(name: str, table: dict[Any, Any]) -> bool:
    """Whether a dict only stands around parts: {"app": {"model": …, "optim": …}}."""
    if name in MODEL_KEYS or _named(name, table) is not None or is_state_dict(table):
        return False
    inside = any(
        str(key) in MODEL_KEYS or _named(str(key), value) == "optimizer" for key, value in table.items() if _is_filled(value)
    )
    return name.lower() in _INSIDE or (inside and not _BOOKKEEPING.match(name))


def _role(name: str, value: Any) -> Role:
    if not _is_filled(value):
        return "other"
    named = _named(name, value)
    if named is not None:
        return named
    if _BOOKKEEPING.match(name) and not _has_names_of_weights(value):
        return "other"
    looks_like_weights = is_state_dict(value) or is_module(value) or (isinstance(value, dict) and _holds_models(value))
    return "weights" if looks_like_weights or is_tensor(value) else "other"


def _named(name: str, value: Any) -> Role | None:
    """The role that its name tells, if it is what the name says."""
    return next((role for role, pattern in _NAMES if pattern.search(name) and _fits(role, name, value)), None)


def _fits(role: Role, name: str, value: Any) -> bool:
    """Whether something is what its name says: `optimizer: "adamw"` is a setting, not an optimizer's state."""
    if role == "ema":
        return next(tensors_in(value), None) is not None
    if role == "settings":
        return isinstance(value, dict) or settings_of(value) is not None
    if role == "rng":
        return not isinstance(value, (bool, int, float, str)) and not any("float" in tensor.dtype for tensor in tensors_in(value))
    if role == "scaler":
        tables = value if isinstance(value, (list, tuple)) else [value]
        return any("scale" in str(key) for table in tables if isinstance(table, dict) for key in table)
    if role == "optimizer" and "optim" not in name.lower():
        return isinstance(value, dict) and "param_groups" in value
    return isinstance(value, (dict, list, tuple, Opaque))


def _is_filled(value: Any) -> bool:
    return value is not None and not (isinstance(value, (dict, list, tuple, str, bytes)) and not value)


def _has_names_of_weights(value: Any) -> bool:
    """Whether it is a model whatever it is called: `best_model` is one, `metrics` is none."""
    if is_module(value):
        return True
    return is_state_dict(value) and any("." in name or name in ("weight", "bias") for name in value)


def _holds_models(table: dict[Any, Any]) -> bool:
    """Whether it holds several state dicts: {"generator": {…}, "discriminator": {…}}."""
    tables = [value for value in table.values() if isinstance(value, dict)]
    return bool(tables) and any(is_state_dict(value) or is_module(value) for value in tables)


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor, or one that torch makes of several: sparse, nested, of a subclass."""
    return isinstance(value, TensorInfo) or (isinstance(value, Opaque) and value.name.startswith("torch._utils._rebuild_"))


def is_state_dict(value: Any) -> bool:
    """Whether it is a dict of tensors by name, as `state_dict()` gives it; what a module adds to its own is allowed."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        return False
    tensors = [key for key, item in value.items() if is_tensor(item)]
    others = [key for key, item in value.items() if not is_tensor(item) and not _is_extra(key, item)]
    if not others:
        return len(tensors) > 0
    dotted = sum("." in key for key in tensors)
    return len(tensors) >= _FEW_WEIGHTS and dotted > len(others) and not any(_is_known(key) for key in others)


def _is_extra(key: str, value: Any) -> bool:
    """What stands in a state dict and is no tensor: a module's own state, notes of a format, a weight's settings."""
    return key.endswith("_extra_state") or key in ("_metadata", "__metadata__") or (value is None and "." in key)


def _is_known(key: str) -> bool:
    return key in MODEL_KEYS or any(pattern.search(key) for _, pattern in _NAMES)


def is_module(value: Any) -> bool:
    """Whether it is an nn.Module that was pickled whole."""
    return isinstance(value, Opaque) and isinstance(value.state, dict) and {"_parameters", "_modules"} <= value.state.keys()


def module_weights(
    module: Opaque, prefix: str = "", groups: Sequence[str] = ("_parameters", "_buffers")
) -> dict[str, TensorInfo]:
    """The state dict of a module that was pickled whole; with fewer `groups`, its parameters alone."""
    weights: dict[str, TensorInfo] = {}
    state = module.state if isinstance(module.state, dict) else {}
    for group in groups:
        table = state.get(group)
        for name, value in table.items() if isinstance(table, dict) else ():
            if isinstance(value, TensorInfo) and not (
                group == "_buffers" and name in _row(state.get("_non_persistent_buffers_set"))
            ):
                weights[f"{prefix}{name}"] = value
    inner = state.get("_modules")
    for name, value in inner.items() if isinstance(inner, dict) else ():
        if isinstance(value, Opaque):
            weights |= module_weights(value, f"{prefix}{name}.", groups)
    return weights


def module_parameters(module: Opaque) -> list[TensorInfo]:
    """Its parameters, without its buffers."""
    return list(module_weights(module, groups=("_parameters",)).values())


def _row(value: Any) -> Any:
    return value if isinstance(value, (list, tuple, set, frozenset)) else ()


def settings_of(value: Any) -> dict[str, Any] | None:
    """Settings as a dict: one, or the attributes of a Namespace and the like."""
    if isinstance(value, Opaque):
        value = value.state if isinstance(value.state, dict) else None
    if not isinstance(value, dict) or next(tensors_in(value), None) is not None:
        return None
    content = value.get("_content")  # OmegaConf keeps its own under this name
    return {str(key): item for key, item in (content if isinstance(content, dict) else value).items()}


def is_kept_beside(part: Part) -> bool:
    """Whether nothing is computed from what a part holds: settings, random state, metrics."""
    bookkeeping = bool(part.path) and bool(_BOOKKEEPING.match(str(part.path[-1])))
    return bookkeeping if part.role == "other" else part.role not in ("weights", "optimizer", "ema")


def arrays_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Opaque]]:
    """All arrays of numpy below, and tensors whose bytes could not be had, named by their path."""
    if isinstance(value, Opaque) and value.name in ("numpy.ndarray", "torch.Tensor") and len(value.arguments) > 1:
        yield ".".join(map(str, path)) or "array", value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from arrays_in(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from arrays_in(item, (*path, number))
    elif isinstance(value, Opaque):
        yield from arrays_in(value.state, path)
        yield from arrays_in(value.arguments, path)


def tensors_in(value: Any) -> Iterator[TensorInfo]:
    """All tensors below."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, TensorInfo):
            yield item
        elif isinstance(item, dict):
            stack.extend(reversed(item.values()))
        elif isinstance(item, (list, tuple)):
            stack.extend(reversed(item))
        elif isinstance(item, Opaque):
            stack += [item.state, *reversed(item.arguments)]
