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
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 1000


def main() -> None:
    """Make steps until the one who measures ends the process."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    make = find(sys.argv[1])
    batch = int(json.loads(os.environ.get("HOLDFAST_PLAN", "{}")).get("batch") or 8)
    model, inputs, *rest = make(batch) if inspect.signature(make).parameters else make()
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    model = model.to(device).train()
    optimizer = rest[0] if rest else torch.optim.AdamW(model.parameters())
    names, tensors = _parts(inputs)
    rows = [tensor.repeat(-(-batch // len(tensor)), *[1] * (tensor.dim() - 1))[:batch].cpu() for tensor in tensors]
    for _ in range(STEPS):
        for drawn in DataLoader(TensorDataset(*rows), batch_size=batch):
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
    """Something to go backward from."""
    import torch

    given = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if given is not None:
        return given
    while not isinstance(output, torch.Tensor):
        output = next(iter(output.values() if isinstance(output, dict) else output))
    return output.float().mean()


def _parts(inputs: Any) -> tuple[list[str], list[Any]]:
    if isinstance(inputs, dict):
        return list(inputs), list(inputs.values())
    return [], list(inputs) if isinstance(inputs, list | tuple) else [inputs]


if __name__ == "__main__":
    main()
