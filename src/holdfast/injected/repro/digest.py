"""A tensor, a batch or a generator as a few letters: equal bytes, equal letters."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def digest(tensor: torch.Tensor) -> str:
    """The bytes of a tensor, its shape and kind."""
    plain = _plain(tensor)
    told = hashlib.blake2b(f"{tuple(plain.shape)} {plain.dtype}".encode(), digest_size=8)
    told.update(_bytes(plain))
    return told.hexdigest()


def digest_of_samples(tensor: torch.Tensor) -> str:
    """The rows of a batch whatever their order: tells another order from other contents."""
    plain = _plain(tensor)
    if plain.dim() == 0:
        return digest(tensor)
    rows = sorted(hashlib.blake2b(_bytes(row), digest_size=8).hexdigest() for row in plain)
    return hashlib.blake2b(" ".join(rows).encode(), digest_size=8).hexdigest()


def tensors_in(thing: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a batch or an output, and where in it."""
    if isinstance(thing, torch.Tensor):
        yield name, thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from tensors_in(value, f"{name}[{key!r}]")
    elif isinstance(thing, list | tuple):
        for index, value in enumerate(thing):
            yield from tensors_in(value, f"{name}[{index}]")


def generators() -> dict[str, str]:
    """The state of each global generator."""
    numbers = np.random.get_state(legacy=False)
    return {
        "torch": digest(torch.get_rng_state()),
        "numpy": _text(str(numbers["state"]["key"].tobytes()) + str(numbers["state"]["pos"])),
        "random": _text(str(random.getstate())),
    }


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return plain.resolve_conj().resolve_neg().cpu().contiguous()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _text(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
