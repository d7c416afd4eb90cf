"""What to type: the exact call that loads a checkpoint into a model."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoints.matching.sides import Side
from holdfast.checkpoints.renames import Rename


def own_call(side: Side, *, which: str = "model", leave_out: Sequence[str] = (), part: str = "") -> str:
    """`holdfast.load(model, "PATH")`: reads every format, and runs nothing that is inside."""
    more = f', which="{which}"' if which != "model" else ""
    if part:
        more += f', part="{part}"'
    if leave_out:
        listed = ", ".join(f'"{name}"' for name in leave_out)
        more += f", leave_out=({listed},)" if len(leave_out) == 1 else f", leave_out=({listed})"
    return f'holdfast.load(model, "{side.name}"{more})'


def torch_call(side: Side, rename: Rename) -> str | None:
    """The same without Holdfast, where one line does it."""
    read = _reading(side)
    if read is None or rename.python is None or not rename.is_safe:
        return None
    if not rename.is_needed:
        return f"model.load_state_dict({read})"
    return f"model.load_state_dict({{{rename.python}: v for k, v in {read}.items()}})"


def _reading(side: Side) -> str | None:
    if side.format == "safetensors":
        return f'safetensors.torch.load_file("{side.name}")'
    if not side.format.startswith("torch ") or side.weights_at is None or not side.is_plain:
        return None
    keys = "".join(f'["{key}"]' for key in side.weights_at)
    return f'torch.load("{side.name}", weights_only=True){keys}'
