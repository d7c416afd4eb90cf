"""Trains what a factory makes, for `holdfast plan package.module:factory`: run as a program, in a process of its own.

The factory gives `(model, inputs)`; inputs are a tensor, or a tuple or dict of them, with samples along the first dimension. A
factory that takes a parameter is given the batch size; otherwise its samples are repeated. The loss is the output's `loss`, or
the mean of its numbers. `(model, inputs, optimizer)` brings an optimizer of its own; without, it is AdamW.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def main() -> None:
    """Make steps; the injected measurement ends the process."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset, TensorDataset

    class Endless(IterableDataset[Any]):
        """The samples again and again: no length, so the batch has no limit."""

        def __init__(self, samples: Any) -> None:
            self._samples = samples

        def __iter__(self) -> Iterator[Any]:
            while True:
                yield from (self._samples[index] for index in range(len(self._samples)))

    make = find(sys.argv[1])
    batch = int(json.loads(os.environ.get("HOLDFAST_PLAN", "{}")).get("batch") or 8)
    model, inputs, *rest = make(batch) if inspect.signature(make).parameters else make()
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    model = model.to(device).train()
    optimizer = rest[0] if rest else torch.optim.AdamW(model.parameters())
    names, tensors = _parts(inputs)
    rows = [tensor.repeat(-(-batch // len(tensor)), *[1] * (tensor.dim() - 1))[:batch].cpu() for tensor in tensors]
    for drawn in DataLoader(Endless(TensorDataset(*rows)), batch_size=batch):
        moved = [part.to(device) for part in drawn]
        output = model(**dict(zip(names, moved, strict=True))) if names else model(*moved)
        optimizer.zero_grad()
        loss_of(output).backward()
        optimizer.step()


def find(name: str) -> Callable[..., Any]:
    """`package.module:factory`, looked for here first."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        made: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SystemExit(f"{name} cannot be found: {error}") from None
    return made


def loss_of(output: Any) -> Any:
    """A scalar for `backward()`."""
    import torch

    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if loss is not None:
        return loss
    while not isinstance(output, torch.Tensor):
        output = next(iter(output.values() if isinstance(output, dict) else output))
    return output.float().mean()


def _parts(inputs: Any) -> tuple[list[str], list[Any]]:
    if isinstance(inputs, dict):
        return list(inputs), list(inputs.values())
    return [], list(inputs) if isinstance(inputs, list | tuple) else [inputs]


if __name__ == "__main__":
    main()
