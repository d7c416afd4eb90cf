"""What autograd keeps for the backward pass, by block of the model: what activation checkpointing could save."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class SavedForBackward:
    """Bytes that are kept inside the model's repeated blocks, and outside of them; each storage once."""

    def __init__(self) -> None:
        self._blocks: dict[type, int] = {}
        self._inside: list[nn.Module] = []
        self._clear()

    def listen(self) -> None:
        """Hear of every tensor that is kept, and of the blocks that are being computed."""
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)
        torch.autograd.graph.saved_tensors_hooks(self._keep, _give_back).__enter__()

    def take(self) -> dict[str, int]:
        """The bytes of the step that is over: all, the largest block's, and the blocks' inputs."""
        told = {
            "saved": self._saved,
            "in_blocks": sum(self._of_block.values()),
            "largest_block": max(self._of_block.values(), default=0),
            "block_inputs": self._inputs,
            "blocks": len(self._of_block),
        }
        self._clear()
        return told

    def _clear(self) -> None:
        self._saved = self._inputs = 0
        self._seen: set[int] = set()
        self._of_block: dict[int, int] = {}

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if not self._inside and torch.is_grad_enabled() and _is_block(module):
            self._inside.append(module)
            self._of_block.setdefault(id(module), 0)
            self._inputs += sum(one.numel() * one.element_size() for one in inputs if isinstance(one, torch.Tensor))

    def _leave(self, module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._inside and self._inside[-1] is module:
            self._inside.pop()

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, nn.Parameter) or not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return tensor
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen and not (tensor.is_leaf and tensor.requires_grad):
            self._seen.add(storage.data_ptr())
            self._saved += storage.nbytes()
            if self._inside:
                self._of_block[id(self._inside[-1])] += storage.nbytes()
        return tensor


def _give_back(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _is_block(module: nn.Module) -> bool:
    """A part that is worth computing again: one of several children, with children and parameters of its own."""
    return any(True for _ in module.children()) and any(True for _ in module.parameters()) and module in _repeated()


_KNOWN: list[set[nn.Module]] = []


def _repeated() -> set[nn.Module]:
    """The modules of lists and sequences of at least two alike, found once."""
    if not _KNOWN:
        from holdfast.inside.discovery import find_live_objects

        found: set[nn.Module] = set()
        for parent in find_live_objects().modules:
            if isinstance(parent, nn.ModuleList | nn.Sequential) and len(parent) > 1:
                kinds = [type(child) for child in parent]
                found |= {child for child in parent if kinds.count(type(child)) > 1}
        _KNOWN.append(found)
    return _KNOWN[0]
