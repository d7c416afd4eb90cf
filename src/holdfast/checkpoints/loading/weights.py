"""Put weights of a file into a model: everything that could refuse is asked before the first number changes."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import torch
from torch import nn

from holdfast.checkpoints.contents import TensorInfo
from holdfast.checkpoints.matching.from_model import state_of
from holdfast.checkpoints.tensors import Tensors
from holdfast.errors import BadCheckpoint, DoesNotMatch, StorageError, UsageError

_NARROW = (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


def refuse_sharded(model: nn.Module) -> None:
    """A model of which this rank holds only a part is restored by all ranks together."""
    distributed = sys.modules.get("torch.distributed.fsdp")
    fsdp = getattr(distributed, "FullyShardedDataParallel", ())
    tensors = (*model.parameters(), *model.buffers())
    if any(hasattr(tensor, "_local_tensor") for tensor in tensors) or any(isinstance(part, fsdp) for part in model.modules()):
        raise UsageError(
            "The model is sharded (FSDP, DTensor): this rank holds only a part of its weights.",
            fix="restore it on all ranks with CheckpointStore.restore, or load the file before the model is sharded",
        )


class Plan:
    """Which tensor of the file goes into which of the model's."""

    def __init__(self, model: nn.Module, infos: Mapping[str, TensorInfo], pairs: Mapping[str, str]) -> None:
        """`pairs` are names of the file with names of the model, all of equal shape."""
        targets = state_of(model)
        _refuse_foreign(model, {there: targets[there] for there in pairs.values()})
        self._moves: dict[int, tuple[TensorInfo, torch.Tensor, str]] = {}
        self._twice: list[tuple[TensorInfo, TensorInfo, str]] = []
        for name, there in pairs.items():
            target = targets[there]
            first = self._moves.setdefault(id(target), (infos[name], target, there))
            if first[2] != there and _place(first[0]) != _place(infos[name]):
                self._twice.append((first[0], infos[name], f"{first[2]} and {there}"))

    def __len__(self) -> int:
        return len(self._moves)

    def check(self, tensors: Tensors) -> None:
        """Raises DoesNotMatch where the model ties what the file has twice, and differently, or a number would overflow."""
        for one, other, names in self._twice:
            if not torch.equal(tensors.tensor(one), tensors.tensor(other)):
                raise DoesNotMatch(
                    f"The model has {names} as one tensor; the file has two, and they differ.",
                    fix="build the model without tying them (tie_word_embeddings=False), or leave one of them out",
                )
        for info, target, name in self._moves.values():
            kind = str(target.dtype).removeprefix("torch.")
            if target.dtype not in _NARROW or info.dtype == kind:
                continue
            if not all(_fits(piece, target.dtype) for piece in tensors.pieces(info)):
                raise DoesNotMatch(
                    f"{name} holds numbers that are too large for {kind}.", fix=f"build the model in {info.dtype} or bfloat16"
                )

    def carry_out(self, tensors: Tensors) -> None:
        """Copy, tensor by tensor. Raises BadCheckpoint; only here, where a disk fails between two readings, is it too late."""
        with torch.no_grad():
            for number, (info, target, name) in enumerate(self._moves.values()):
                try:
                    tensors.copy(info, target)
                except StorageError as error:
                    raise BadCheckpoint(
                        f"{error.problem} The model has {number} of {len(self)} weights of it, up to {name}: do not use it so.",
                        fix="load this one again, or another, into it",
                    ) from error


def _fits(piece: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether what is finite stays finite."""
    return bool((piece.to(dtype).to(torch.float32).isfinite() | ~piece.isfinite()).all())


def _place(info: TensorInfo) -> tuple[object, ...]:
    return info.storage, info.offset, info.shape, info.stride


def _refuse_foreign(model: nn.Module, targets: Mapping[str, torch.Tensor]) -> None:
    """Every target must be the model's own: a state dict of copies would take the weights and change nothing."""
    for name, tensor in targets.items():
        if tensor.is_meta:
            raise UsageError(
                f"{name} is on the meta device: there is no room for its numbers.",
                fix='give the model memory first: model.to_empty(device="cpu"), or build it without torch.device("meta")',
            )
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    foreign = [name for name, tensor in targets.items() if tensor.numel() and tensor.untyped_storage().data_ptr() not in own]
    if foreign:
        raise UsageError(
            f"The model's state_dict() gives copies of its weights, such as {foreign[0]}: filling them would change nothing.",
            fix="use the model's own load_state_dict()",
        )
