"""Every function that Holdfast puts a wrapper around in a training process, and what it sees there. Nothing else is replaced.

What torch has public hooks for needs none: updates (optimizer hooks), models (registration hooks), module times (module hooks).
docs/capture.md shows this list, and a test compares it with a live process.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALWAYS = "always"
GUARD = "`guard`, `heal`"
RANKS = "several ranks"


@dataclass(frozen=True, slots=True)
class Tap:
    """A function by its full name, what is seen there, and when it is wrapped."""

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
    Tap("torch.autograd.grad", "that gradients are computed past `backward`, which is said at the end if no step was seen"),
    Tap("torch.optim.Optimizer.__init__", "which optimizers there are"),
    Tap("torch.optim.Optimizer.load_state_dict", "that an optimizer got its state from a checkpoint"),
    Tap("torch.amp.GradScaler.scale", "the loss without the scale"),
    Tap("torch.amp.GradScaler.step", "updates that the scaler skips"),
    Tap("torch.amp.GradScaler.load_state_dict", "that a scaler got its state from a checkpoint"),
    Tap("torch.nn.utils.clip_grad_norm_", "the gradient norm before clipping, and the limit"),
    Tap("torch.nn.utils.clip_grad.clip_grad_norm_", "the gradient norm before clipping, and the limit"),
    Tap(
        "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
        "batches, the time spent waiting for them, epochs",
    ),
    Tap("torch.nn.Module.train", "where an evaluation begins and ends"),
    Tap("torch.nn.Module.load_state_dict", "weights from a checkpoint, and which are missing"),
    Tap("torch.nn.Module.__getstate__", "nothing: keeps Holdfast's module hooks out of pickled models"),
    Tap("torch.jit._recursive.create_script_module", "nothing: keeps Holdfast's module hooks out of TorchScript"),
    Tap("torch.utils.swap_tensors", "nothing: torch refuses to swap tensors that have weak references"),
    Tap("torch.save", "checkpoints: path, size, NaN in them"),
    Tap("torch.serialization.save", "checkpoints: path, size, NaN in them"),
    Tap("torch.load", "which checkpoint was loaded"),
    Tap("torch.serialization.load", "which checkpoint was loaded"),
    Tap("safetensors.torch.save_file", "checkpoints in that format", "safetensors is imported"),
    Tap("os._exit", "nothing: writes the last rows, because `atexit` does not run"),
    Tap("torch.distributed.init_process_group", "that there are several ranks"),
    *(Tap(f"torch.distributed.{name}", "which collective, how many bytes, how long", RANKS) for name in COLLECTIVES),
    Tap("torch.utils.data.dataloader._BaseDataLoaderIter._next_index", "which samples are in a batch", GUARD),
    Tap("torch.optim.swa_utils.AveragedModel.update_parameters", "nothing: a skipped update is not averaged", GUARD),
    Tap("os.replace", "keeps a checkpoint with NaN from replacing a good one", f"{GUARD}, once one was saved"),
    Tap("os.rename", "keeps a checkpoint with NaN from replacing a good one", f"{GUARD}, once one was saved"),
    Tap("torch.utils.data.DataLoader.__init__", "nothing: uses fewer workers", "`heal`, after running out of host memory"),
)
_KNOWN = frozenset(tap.target for tap in TAPS)


class Taps:
    """The wrappers that are in place."""

    def __init__(self) -> None:
        self._patches = Patches()

    def wrap(self, target: str, make: Callable[[Any], Any]) -> None:
        """Replace the function of that full name by `make(original)`; it has to be in the list."""
        if target not in _KNOWN:
            raise LookupError(f"{target} is not listed in {__name__}")
        owner, _, name = target.rpartition(".")
        self._patches.replace(pkgutil.resolve_name(owner), name, make)

    def remove(self) -> None:
        """Put every original back."""
        self._patches.restore()


def page(text: str) -> str:
    """The page docs/capture.md with the list as a table between its two marks."""
    before, _, rest = text.partition("<!-- taps -->\n")
    after = rest.partition("<!-- end of taps -->\n")[2]
    return f"{before}<!-- taps -->\n{_table()}<!-- end of taps -->\n{after}"


def _table() -> str:
    rows: dict[tuple[str, str], list[str]] = {}
    for tap in TAPS:
        rows.setdefault((tap.sees, tap.when), []).append(f"`{tap.target}`")
    lines = [f"| {', '.join(names)} | {sees} | {when} |" for (sees, when), names in rows.items()]
    return "\n".join(["| wrapped | what is seen there | when |", "|---|---|---|", *lines]) + "\n"


if __name__ == "__main__":
    _path = Path(sys.argv[1])
    _path.write_text(page(_path.read_text(encoding="utf-8")), encoding="utf-8")


class Patches:
    """The replaced attributes, in the order they were replaced."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace `owner.name` by `make(original)`; an owner without that name is left alone (another torch version)."""
        original = getattr(owner, name, None)
        if original is None:
            return
        ours = make(original)
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(original, attribute):
                setattr(ours, attribute, getattr(original, attribute))
        ours.__wrapped__ = original
        setattr(owner, name, ours)
        self._undo.append((owner, name, original, ours))

    def restore(self) -> None:
        """Put every original back that nobody else has wrapped."""
        while self._undo:
            owner, name, original, ours = self._undo.pop()
            if getattr(owner, name, None) is ours:
                setattr(owner, name, original)
