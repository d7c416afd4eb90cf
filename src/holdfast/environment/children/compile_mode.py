"""Builds the user's model or step, compiles it in one mode, and reports how long that and the steps took, and the memory."""

from __future__ import annotations

import importlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.environment.child_output import tell

_CANNOT = 3
_WARM, _MOST, _LONGEST = 3, 60, 4.0


def main(name: str, mode: str) -> None:
    """Tell stage by stage; what is not torch.compile's fault ends with its own exit code."""
    import torch

    tell("torch imported")
    made = _make(torch, name)
    compiled: Callable[[Any], Any] = (
        (lambda module: module) if mode == "eager" else (lambda module: torch.compile(module, mode=mode))
    )
    try:
        step, inputs = _step(torch, made, compiled)
    except (TypeError, ValueError) as error:
        _cannot(str(error), "return (model, inputs), with inputs a tensor, a tuple or a dict; or a function without arguments")
    device = _device(torch, made)
    tell("model made", device=device)
    _measure(torch, step, inputs, device, mode)


def _make(torch: Any, name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    module, _, factory = name.partition(":")
    try:
        target: Any = importlib.import_module(module)
        for part in factory.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        _cannot(f"{name} cannot be loaded: {error}", "name an importable function: module:function")
    torch.manual_seed(0)
    try:
        return target()
    except Exception as error:  # noqa: BLE001 - the user's own code
        _cannot(f"{name}() failed: {type(error).__name__}: {error}", "the factory is called without arguments")


def _step(torch: Any, made: Any, compiled: Callable[[Any], Any]) -> tuple[Callable[..., Any], Any]:
    """The function to be timed, and the inputs that it takes; a step of the user's takes none."""
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module):
        model, inputs = made
        return _training_step(torch, model, compiled(model)), inputs
    if callable(made) and not isinstance(made, torch.nn.Module):
        step = compiled(made)
        return (lambda _: step()), None
    raise TypeError(f"the factory returned {type(made).__name__}, which is neither (model, inputs) nor a function")


def _training_step(torch: Any, model: Any, compiled: Any) -> Callable[[Any], Any]:
    """Forward, and backward if the model is there to be trained."""
    from torch.utils._pytree import tree_leaves

    learns = model.training and any(parameter.requires_grad for parameter in model.parameters())

    def step(inputs: Any) -> Any:
        output = compiled(**inputs) if isinstance(inputs, dict) else compiled(*_as_tuple(inputs))
        loss = getattr(output, "loss", None)
        if loss is None:
            leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
            if not leaves:
                raise TypeError("the model returns no floating-point tensor")
            loss = sum(leaf.float().mean() for leaf in leaves)
        if learns:
            loss.backward()
            model.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def _as_tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def _device(torch: Any, made: Any) -> str:
    if isinstance(made, tuple):
        first = next(made[0].parameters(), None)
        if first is not None:
            return str(first.device.type)
    return "cuda" if torch.cuda.is_available() else "cpu"


def _measure(torch: Any, step: Callable[..., Any], inputs: Any, device: str, mode: str) -> None:
    sync = torch.cuda.synchronize if device == "cuda" else (lambda: None)

    def timed(state: Any) -> tuple[float, Any]:
        begun = time.perf_counter()
        result = step(state)
        sync()
        return time.perf_counter() - begun, result

    try:
        first, loss = timed(inputs)
    except Exception as error:
        if mode == "eager":
            _cannot(
                f"a step failed without compiling: {type(error).__name__}: {error}",
                "make the step run without torch.compile first",
            )
        raise
    tell("first step", loss=_number(loss))
    warm = [first, *(timed(inputs)[0] for _ in range(_WARM - 1))]
    tell("warm")
    times: list[float] = []
    until = time.monotonic() + _LONGEST
    while len(times) < _MOST and (len(times) < 5 or time.monotonic() < until):
        times.append(timed(inputs)[0])
    usual = statistics.median(times)
    spent = max(0.0, sum(warm) - _WARM * usual)
    peak = torch.cuda.max_memory_reserved() if device == "cuda" else None
    if mode == "eager":
        return tell("steps", step_seconds=usual, peak_bytes=peak)
    tell("steps", step_seconds=usual, compile_seconds=spent, peak_bytes=peak, **_counted())
    if mode == "default":
        _partial_batch(torch, timed, inputs)
    return None


def _counted() -> dict[str, Any]:
    """Graph breaks and what else torch counts while it compiles."""
    from torch._dynamo.utils import counters

    breaks = counters["graph_break"]
    reasons = [" ".join(str(reason).split())[:160] for reason, _ in breaks.most_common(3)]
    skips = int(counters["inductor"].get("cudagraph_skips", 0))
    return {"graph_breaks": sum(breaks.values()), "break_reasons": reasons, "cudagraph_skips": skips}


def _partial_batch(torch: Any, timed: Callable[[Any], tuple[float, Any]], inputs: Any) -> None:
    """What the last, smaller batch of an epoch costs: another shape is compiled once more."""
    from torch._dynamo.utils import counters
    from torch.utils._pytree import tree_leaves, tree_map

    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
    rows = {len(tensor) for tensor in tensors}
    if len(rows) != 1 or next(iter(rows)) < 3:
        return
    smaller = tree_map(lambda leaf: leaf[:-1] if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 else leaf, inputs)
    before = counters["stats"]["unique_graphs"]
    try:
        seconds, _ = timed(smaller)
    except Exception:  # noqa: BLE001 - a model that takes no other batch size has no such batch
        return
    tell("smaller batch", partial_batch_seconds=seconds, partial_batch_graphs=int(counters["stats"]["unique_graphs"] - before))


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _cannot(problem: str, fix: str) -> Any:
    tell("could not", error=" ".join(problem.split()), fix=fix)
    sys.stdout.flush()
    raise SystemExit(_CANNOT)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
