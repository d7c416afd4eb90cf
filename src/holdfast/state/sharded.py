"""Sharded states (FSDP, tensor parallelism): all ranks write them with `torch.distributed.checkpoint`; any number can read them.

    step-000123/
      shards/         the tensors of models, averages and optimizers, each rank's shards
      training.pt     everything else; a number in place of each of these tensors, and the list of their names

torch's state-dict functions name a tensor alike on any number of ranks. They may run collectives: all ranks must save and restore
at the same point. `shards/` holds only tensors: reading them runs no code.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.safetensors import count
from holdfast.errors import CannotRestore, StorageError
from holdfast.state import report
from holdfast.state.checkpoint_parts import BY_NAME, SavedState, numbered
from holdfast.state.parameters import local_tensor, optimizer_parameters, plain_name
from holdfast.state.training_state import TrainingState
from holdfast.state.values import Ref, Tree, flatten_all, refs_in, unflatten

SHARDS = "shards"
_CHUNK = 1 << 22  # bytes
_MAX_NAMED = 3


# Writing


@dataclass(frozen=True, slots=True)
class ShardedCopy:
    """This rank's part of a state, copied to the host."""

    tensors: dict[str, Any]  # by name; a shard knows its place in the whole
    training: Tree  # the content of training.pt
    unchecked: frozenset[str]  # which may hold infinities

    @classmethod
    def of(cls, state: TrainingState, also: Mapping[str, Any]) -> ShardedCopy:
        """Copy a state; `also` adds plain values. All ranks must call this."""
        also = dict(also)
        gradients = also.pop("gradients", [])
        if any(hasattr(p, "_fsdp_flattened") for o in state.optimizers() if gradients for p in optimizer_parameters(o)):
            raise StorageError("FullyShardedDataParallel's gradients have no names.", fix="save after optimizer.step()")
        rest = state.without_models().read(also)
        tree, tensors = flatten_all({**_read(state), "gradients": gradients})
        names: dict[Ref, str] = {}
        for place, ref in refs_in(tree):
            kind, number, rest_of_name = place.split(".", 2)
            names.setdefault(ref, f"{numbered(kind.removesuffix('s'), int(number))}.{rest_of_name}")
        numbers = {ref: number for number, ref in enumerate(names)}
        training = {
            **unflatten(rest.tree, lambda ref: rest.sources[ref.number].tensor.to("cpu", copy=True), arrays=False),
            "sharded": unflatten(tree, lambda ref: torch.tensor(numbers[ref]), arrays=False),
            "names": list(names.values()),
        }
        copies = {name: _on_host(tensors[ref.number]) for ref, name in names.items()}
        return cls(copies, training, frozenset(_may_be_infinite(state)))

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(local.nbytes for tensor in self.tensors.values() for local in _locals(tensor))

    def non_finite(self) -> list[dict[str, Any]]:
        """The tensors that must be finite and are not, each with the number of its non-finite values."""
        checked = {name: _locals(tensor) for name, tensor in self.tensors.items() if name not in self.unchecked}
        counts = {name: sum(count(local) for local in parts if local.is_floating_point()) for name, parts in checked.items()}
        return [{"name": name, "non_finite": bad} for name, bad in counts.items() if bad]

    def write(self, folder: Path, group: Any) -> dict[str, dict[str, Any]]:
        """Write this rank's shards, rank 0 also what is not sharded; returns size and checksum of the written files.

        A failure is raised on all ranks.
        """
        dcp, rank = _dcp(), torch.distributed.get_rank(group)
        tensors = {name: tensor for name, tensor in self.tensors.items() if rank == 0 or type(tensor) is not torch.Tensor}
        try:
            dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder, sync_files=True), process_group=group)
        except dcp.CheckpointException as error:  # not an Exception
            text = f"{folder} could not be written: {_first_failure(error)}"
            raise StorageError(text, fix="free some space, or check the disk") from None
        files = [
            path for path in folder.iterdir() if path.name.startswith(f"__{rank}_") or (not rank and path.name == ".metadata")
        ]
        return {f"{SHARDS}/{path.name}": _checksum(path) for path in sorted(files)}


def _read(state: TrainingState, fresh: Sequence[bool] = ()) -> Tree:
    """Models, averages and optimizers by name, as torch saves them; of an optimizer without state only the settings.

    For those in `fresh` torch makes a state, by a step without gradients.
    """
    api, models, optimizers = _api(), state.models(), state.optimizers()
    with _hidden():
        return {
            "models": [api.get_model_state_dict(model) for model in models],
            "averages": [
                api.get_model_state_dict(one) if isinstance(one, nn.Module) else one.state_dict() for one in state.averages()
            ],
            "optimizers": [
                api.get_optimizer_state_dict(_as_one(models), optimizer) if optimizer.state or is_fresh else _settings(optimizer)
                for optimizer, is_fresh in zip_longest(optimizers, fresh)
            ],
        }


def _settings(optimizer: torch.optim.Optimizer) -> Tree:
    return {"groups": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]}


def _as_one(models: list[nn.Module]) -> nn.Module:
    """All models as one: an optimizer may have parameters of several."""
    return models[0] if len(models) == 1 else nn.ModuleList(models)


def _may_be_infinite(state: TrainingState) -> Iterator[str]:
    """The names of frozen parameters and of buffers other than running statistics: a mask is infinite on purpose."""
    for kind, modules in (("model", state.models()), ("average", state.averages())):
        for number, module in enumerate(modules):
            named = [*module.named_parameters(), *module.named_buffers()] if isinstance(module, nn.Module) else []
            for name, tensor in named:
                is_checked = tensor.requires_grad or name.rpartition(".")[2].startswith("running_")
                if not is_checked and (kind == "model" or not isinstance(tensor, nn.Parameter)):
                    yield f"{numbered(kind, number)}.{plain_name(name)}"


def _on_host(tensor: Any) -> Any:
    """A copy on the host; a shard stays a shard, which knows its place in the whole."""
    if hasattr(tensor, "local_shards"):  # a ShardedTensor, which torch has made for this call
        for shard in tensor.local_shards():
            shard.tensor = shard.tensor.to("cpu", copy=True)
        return tensor
    local = local_tensor(tensor).to("cpu", copy=True)
    return type(tensor)(local, tensor._spec, requires_grad=False) if hasattr(tensor, "placements") else local


def _locals(tensor: Any) -> list[torch.Tensor]:
    """The parts of a tensor on this rank."""
    return [shard.tensor for shard in tensor.local_shards()] if hasattr(tensor, "local_shards") else [local_tensor(tensor)]


def _checksum(path: Path) -> dict[str, Any]:
    crc, size = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return {"size": size, "crc32": f"{crc:08x}", "tensors": {}}


# Restoring


def restore_sharded(path: Path, saved: SavedState, state: TrainingState, *, randomness: bool) -> None:
    """Restore a sharded checkpoint, or one process's checkpoint into a sharded training. All ranks must call this.

    Raises CannotRestore, with nothing changed, if it does not fit.
    """
    fresh = [optimizer for optimizer in state.optimizers() if not optimizer.state]
    try:
        state_dict = _state_dict_for(state, path, saved)
    except Exception:
        for optimizer in fresh:  # torch may have made a state for it
            optimizer.state.clear()
        raise
    api = _api()
    options = api.StateDictOptions(full_state_dict=not saved.names, strict=False)  # a parameter without gradients has no state
    with _hidden():
        for model, weights in zip(state.models(), state_dict["models"], strict=True):
            api.set_model_state_dict(model, weights, options=options)
        for average, weights in zip(state.averages(), state_dict["averages"], strict=True):
            if isinstance(average, nn.Module):
                api.set_model_state_dict(average, weights, options=options)
            else:
                average.load_state_dict(_sharded_as(weights, average.state_dict()))
        for optimizer, states in zip(state.optimizers(), state_dict["optimizers"], strict=True):
            _set_optimizer(_as_one(state.models()), optimizer, states, options)
    parameters = [dict(enumerate(optimizer_parameters(optimizer))) for optimizer in state.optimizers()]
    saved.gradients = [_sharded_as(*pair) for pair in zip(state_dict["gradients"], parameters, strict=False)]
    rest = {**saved.tree, **{kind: [] for kind in BY_NAME}}
    state.without_models().restore(rest, saved.hosts, randomness=randomness)


def _state_dict_for(state: TrainingState, path: Path, saved: SavedState) -> Tree:
    """The saved state by name, with the tensors that the live training needs on this rank. Raises CannotRestore."""
    tree = {kind: saved.tree.get(kind, []) for kind in BY_NAME}
    for kind, objects in (("models", state.models()), ("averages", state.averages()), ("optimizers", state.optimizers())):
        if len(tree[kind]) != len(objects):
            raise CannotRestore(f"it holds {len(tree[kind])} {kind} and there are {len(objects)}", fix="")
    for states, optimizer in zip(tree["optimizers"], state.optimizers(), strict=True):
        groups, now = states.get("param_groups", states.get("groups", ())), optimizer.param_groups
        if len(groups) != len(now):
            raise CannotRestore(f"the optimizer had {len(groups)} parameter groups and has {len(now)}", fix="")
    live = _read(state, [bool(states.get("state")) for states in tree["optimizers"]])
    live["gradients"] = [dict(enumerate(optimizer_parameters(optimizer))) for optimizer in state.optimizers()]
    if not saved.names:
        tree = _by_name(tree, live)
    current, targets = flatten_all(live)
    places = {place: targets[ref.number] for place, ref in refs_in(current)}
    kinds = _kinds(path / SHARDS, saved.names) if saved.names else [(host.size(), host.dtype) for host in saved.hosts]
    _refuse_different(tree, places, kinds)
    loaded = _load(path / SHARDS, saved.names, tree, places) if saved.names else saved.hosts
    state_dict: Tree = unflatten(tree, lambda ref: loaded[ref.number])
    return state_dict


def _set_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, states: Tree, options: Any) -> None:
    for group, settings in zip(optimizer.param_groups, states.get("groups", ()), strict=False):
        group.update(settings)
    if "groups" in states:
        return
    has_state = [name in states["state"] for group in states["param_groups"] for name in group["params"]]
    _api().set_optimizer_state_dict(model, optimizer, states, options=options)
    parameters = optimizer_parameters(optimizer)
    for parameter, keeps in zip(parameters, has_state, strict=False) if len(parameters) == len(has_state) else ():
        if not keeps:  # torch has made one for it
            optimizer.state.pop(parameter, None)


def _by_name(tree: Tree, live: Tree) -> Tree:
    """The state that one process saved, with the names that torch gives to a sharded one."""
    return {
        "models": [_module_by_name(saved, names) for saved, names in zip(tree["models"], live["models"], strict=True)],
        "averages": [
            saved["state"] if "state" in saved else _module_by_name(saved, names)
            for saved, names in zip(tree["averages"], live["averages"], strict=True)
        ],
        "optimizers": [
            _optimizer_by_name(saved, names) for saved, names in zip(tree["optimizers"], live["optimizers"], strict=True)
        ],
        "gradients": tree["gradients"],
    }


def _module_by_name(saved: Tree, live: Tree) -> Tree:
    refs = {name: ref for part in saved.values() for name, ref in part.items()}
    return {name: refs[plain_name(name)] for name in live if plain_name(name) in refs}


def _optimizer_by_name(saved: Tree, live: Tree) -> Tree:
    """Parameters by name instead of number; of an optimizer without state only the settings."""
    settings = [{k: v for k, v in group.items() if k != "params"} for group in saved["param_groups"]]
    if not saved["state"]:
        return {"groups": settings}
    names = [name for group in live["param_groups"] for name in group["params"]]
    if len(names) != (number := sum(len(group["params"]) for group in saved["param_groups"])):
        raise CannotRestore(f"the optimizer had {number} parameters and has {len(names)}", fix="")
    groups = [{**group, **old} for old, group in zip(settings, live["param_groups"], strict=True)]
    return {"state": {names[number]: state for number, state in saved["state"].items()}, "param_groups": groups}


def _refuse_different(tree: Tree, places: Mapping[str, torch.Tensor], kinds: list[tuple[torch.Size, torch.dtype]]) -> None:
    """Refuse a checkpoint without all weights, with others, or of another shape or dtype."""
    refs = dict(refs_in(tree))
    required = [place for place in places if place.startswith("models.")]
    if missing := [place for place in required if place not in refs]:
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        raise CannotRestore(f"it does not hold {', '.join(missing[:_MAX_NAMED])}{more}", fix="")
    for place, ref in refs.items():
        if place not in places:
            raise CannotRestore(f"it holds {place}, which the training does not have", fix="")
        if (was := kinds[ref.number]) != (now := (places[place].size(), places[place].dtype)):
            raise CannotRestore(f"{place} was {tuple(was[0])} {was[1]} and is {tuple(now[0])} {now[1]}", fix="")


def _load(folder: Path, names: list[str], tree: Tree, places: Mapping[str, torch.Tensor]) -> list[Any]:
    """The tensors that a tree refers to, on the host; those that are sharded in the live training as shards."""
    dcp, wanted = _dcp(), {names[ref.number]: _on_host(places[place]) for place, ref in refs_in(tree)}
    alone = {"no_dist": True} if "no_dist" in inspect.signature(dcp.load).parameters else {}  # no collectives
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about reading without a process group
        try:
            dcp.load(wanted, storage_reader=dcp.FileSystemReader(folder), **alone)
        except (Exception, dcp.CheckpointException) as error:  # noqa: BLE001 - torch raises many types
            raise StorageError(f"{folder} cannot be read: {_first_failure(error)}", fix="use an older checkpoint") from None
    return [wanted.get(name) for name in names]


def _kinds(folder: Path, names: list[str]) -> list[tuple[torch.Size, torch.dtype]]:
    """The size and dtype of each tensor. The index is a pickle: one that would run code is refused before it is read."""
    contents = open_checkpoint(folder)
    if contents.state not in ("clean", "non-finite"):
        trouble = contents.troubles[0]
        raise StorageError(f"{folder} cannot be read: {trouble.words}", fix=trouble.fix)
    index = _dcp().FileSystemReader(folder).read_metadata().state_dict_metadata
    if missing := [name for name in names if name not in index]:
        raise StorageError(f"{folder} does not hold {missing[0]}.", fix="use an older checkpoint")
    return [(torch.Size(index[name].size), index[name].properties.dtype) for name in names]


def _sharded_as(state: Any, live: Any) -> Any:
    """A state dict, each whole tensor of it sharded as the live one."""
    if isinstance(state, dict):
        return {name: _sharded_as(value, live.get(name)) for name, value in state.items()}
    if not hasattr(live, "placements") or hasattr(state, "placements"):
        return state
    distribute = importlib.import_module("torch.distributed.tensor").distribute_tensor
    return distribute(state.to(live.device), live.device_mesh, live.placements)


# torch


def _dcp() -> Any:
    """Imported on use: it is large, and not every build of torch has it."""
    return importlib.import_module("torch.distributed.checkpoint")


def _api() -> Any:
    return importlib.import_module("torch.distributed.checkpoint.state_dict")


@contextlib.contextmanager
def _hidden() -> Iterator[None]:
    """Hide the optimizer step without gradients that torch makes to initialise a fresh optimizer's state."""
    hidden = report.recorder.while_unseen() if report.recorder is not None else contextlib.nullcontext()
    with warnings.catch_warnings(), hidden:
        warnings.simplefilter("ignore")  # torch's own deprecations
        yield


def _first_failure(error: BaseException) -> str:
    """The first failure of all ranks."""
    failures = getattr(error, "failures", None)
    if failures:
        rank, (cause, _) = next(iter(failures.items()))
        return f"rank {rank}: {type(cause).__name__}: {cause}"
    return f"{type(error).__name__}: {error}"
