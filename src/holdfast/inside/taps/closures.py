"""The closure that `optimizer.step` may be given: found among the arguments, and put back as another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """The closure, where there is one: an optimizer of one's own may take a loss, a rate or a model in its place."""
    given = kwargs["closure"] if "closure" in kwargs else args[1] if len(args) > 1 else None
    return given if callable(given) and not isinstance(given, nn.Module) else None


def with_closure(args: tuple[Any, ...], kwargs: dict[str, Any], closure: Callable[..., Any]) -> tuple[Any, dict[str, Any]]:
    """The same arguments with another closure."""
    if "closure" in kwargs:
        return args, {**kwargs, "closure": closure}
    return (args[0], closure, *args[2:]), kwargs
