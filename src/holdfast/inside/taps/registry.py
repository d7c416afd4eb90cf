"""Every function that Holdfast wraps in a training process, and what it learns there. Nothing else is replaced.

Updates, models and module times come from torch's public hooks instead. docs/capture.md shows this list, and a test compares it
with a live process.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

ALWAYS = "always"
GUARD = "`guard`, `heal`"
RANKS = "several ranks"


@dataclass(frozen=True, slots=True)
class Tap:
    """A function by its qualified name, what is learned from its calls, and when it is wrapped."""

    target: str
    sees: str
    when: str = ALWAYS


COLLECTIVES = (
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all", "all_to_all_single", "barrier"),
    *("broadcast", "broadcast_object_list", "gather", "monitored_barrier", "recv", "reduce", "reduce_scatter"),
    *("reduce_scatter_tensor", "scatter", "send"),
)
TAPS = (
    Tap("torch.autograd.backward", "the loss; how long the backward pass takes"),
    Tap("torch.autograd.grad", "gradients computed without `backward`; reported at the end if no step was recorded"),
    Tap("torch.optim.Optimizer.__init__", "which optimizers exist"),
    Tap("torch.optim.Optimizer.load_state_dict", "whether a checkpoint restored the optimizer's state"),
    Tap("torch.amp.GradScaler.scale", "the unscaled loss"),
    Tap("torch.amp.GradScaler.step", "updates that the scaler skips"),
    Tap("torch.amp.GradScaler.load_state_dict", "whether a checkpoint restored the scaler's state"),
    Tap("torch.nn.utils.clip_grad_norm_", "the gradient norm before clipping, and `max_norm`"),
    Tap("torch.nn.utils.clip_grad.clip_grad_norm_", "the gradient norm before clipping, and `max_norm`"),
    Tap(
        "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
        "batches, time spent waiting for data, epochs",
    ),
    Tap("torch.nn.Module.train", "where an evaluation starts and ends"),
    Tap("torch.nn.Module.load_state_dict", "weights loaded from a checkpoint, and missing keys"),
    Tap("torch.nn.Module.__getstate__", "nothing: keeps Holdfast's module hooks out of pickled models"),
    Tap("torch.jit._recursive.create_script_module", "nothing: keeps Holdfast's module hooks out of TorchScript"),
    Tap("torch.save", "checkpoints: path, size, NaN or Inf"),
    Tap("torch.serialization.save", "checkpoints: path, size, NaN or Inf"),
    Tap("torch.load", "checkpoints that the script loads"),
    Tap("torch.serialization.load", "checkpoints that the script loads"),
    Tap("safetensors.torch.save_file", "checkpoints: path, size, NaN or Inf", "safetensors is imported"),
    Tap("threading.enumerate", "nothing: leaves Holdfast's own threads out"),
    Tap("threading.active_count", "nothing: leaves Holdfast's own threads out"),
    Tap("os._exit", "nothing: flushes the last rows, because `atexit` does not run"),
    Tap("torch.distributed.init_process_group", "whether there are several ranks"),
    *(Tap(f"torch.distributed.{name}", "which collective, bytes, seconds", RANKS) for name in COLLECTIVES),
    Tap("torch.utils.data.dataloader._BaseDataLoaderIter._next_index", "the sample indices of a batch", GUARD),
    Tap("torch.optim.swa_utils.AveragedModel.update_parameters", "nothing: keeps a skipped update out of the average", GUARD),
    Tap("os.replace", "keeps good checkpoints from being replaced", f"{GUARD}: after a save with NaN, or a restart"),
    Tap("os.rename", "keeps good checkpoints from being replaced", f"{GUARD}: after a save with NaN, or a restart"),
    Tap("torch._utils._rebuild_parameter", "whether weights were unpickled", "`heal`"),
    Tap("torch._utils._rebuild_parameter_with_state", "whether weights were unpickled", "`heal`"),
    Tap("torch.utils.data.DataLoader.__init__", "nothing: caps `num_workers`", "`heal`, after running out of host memory"),
)
_LISTED = frozenset(tap.target for tap in TAPS)


class Hook(functools.partial[Any]):
    """What stands in torch's own tables and classes. A script that pickles with dill takes those along: there it becomes a
    function that takes anything and does nothing, with Holdfast and without.
    """

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


def around(
    original: Callable[..., Any], after: Callable[..., None], before: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """A wrapper that dill can pickle: a plain function without globals, that refers to hooks alone. `after` gets what `before`
    returned, and the arguments.
    """
    first, then = None if before is None else Hook(before), Hook(after)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        seen = None if first is None else first(*args, **kwargs)
        result = original(*args, **kwargs)
        then(seen, *args, **kwargs)
        return result

    return FunctionType(wrapper.__code__, {}, closure=wrapper.__closure__)


class Patches:
    """The replaced attributes, in the order they were replaced."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `make(original)`; a name that this torch version lacks is ignored."""
        original = getattr(owner, name, None)
        if original is None:
            return
        wrapper = make(original)
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(original, attribute):
                setattr(wrapper, attribute, getattr(original, attribute))
        wrapper.__wrapped__ = original
        _compile_as(original, wrapper)
        setattr(owner, name, wrapper)
        self._undo.append((owner, name, original, wrapper))

    def restore(self) -> None:
        """Put the originals back, except where somebody else has wrapped the wrapper."""
        while self._undo:
            owner, name, original, wrapper = self._undo.pop()
            if getattr(owner, name, None) is wrapper:
                setattr(owner, name, original)
                _compile_as(None, wrapper)


def _compile_as(original: Any, wrapper: Any) -> None:
    """Let TorchScript compile a call of the wrapper as one of the original, which it knows by identity; None: no longer.

    Models that differentiate in their forward pass call `torch.autograd.grad` there.
    """
    listed: Any = getattr(torch.jit, "_builtins", None)
    if not hasattr(listed, "_builtin_ops") or not hasattr(listed, "_builtin_table"):  # they are not public
        return
    operation = next((operation for function, operation in listed._builtin_ops if function is original), None)
    if operation is not None:
        listed._builtin_ops.append((wrapper, operation))
    else:
        listed._builtin_ops[:] = [entry for entry in listed._builtin_ops if entry[0] is not wrapper]
    if listed._builtin_table is not None:
        listed._builtin_table.pop(id(wrapper), None)
        if operation is not None:
            listed._builtin_table[id(wrapper)] = operation


class Taps(Patches):
    """The installed wrappers, addressed by their name in the list."""

    def wrap(self, target: str, make: Callable[[Any], Any]) -> None:
        """Replace the listed function by `make(original)`."""
        if target not in _LISTED:
            raise LookupError(f"{target} is not listed in {__name__}")
        owner, _, name = target.rpartition(".")
        self.replace(pkgutil.resolve_name(owner), name, make)


def page(text: str) -> str:
    """Return docs/capture.md with the current table between its two markers."""
    before, _, rest = text.partition("<!-- taps -->\n")
    after = rest.partition("<!-- end of taps -->\n")[2]
    return f"{before}<!-- taps -->\n{_table()}<!-- end of taps -->\n{after}"


def _table() -> str:
    rows: dict[tuple[str, str], list[str]] = {}
    for tap in TAPS:
        rows.setdefault((tap.sees, tap.when), []).append(f"`{tap.target}`")
    lines = [f"| {', '.join(names)} | {sees} | {when} |" for (sees, when), names in rows.items()]
    return "\n".join(["| wrapped | recorded there | when |", "|---|---|---|", *lines]) + "\n"


if __name__ == "__main__":
    _path = Path(sys.argv[1])
    _path.write_text(page(_path.read_text(encoding="utf-8")), encoding="utf-8")
