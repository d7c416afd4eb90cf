"""Put a tree together from its leaves and their paths."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def nested(leaves: Iterable[tuple[tuple[str | int, ...], Any]]) -> dict[Any, Any]:
    """A dict of dicts and lists: a container whose keys are the numbers from zero on is a list.

    Where two leaves exclude each other, as no state has it, both stay, one under its joined name.
    """
    root: dict[Any, Any] = {}
    made: dict[int, dict[Any, Any]] = {id(root): root}  # those that are containers, and no leaf that is a dict
    for path, leaf in leaves:
        at = root
        for number, part in enumerate(path[:-1]):
            if part not in at:
                at[part] = {}
                made[id(at[part])] = at[part]
            if id(at[part]) not in made:
                path = (*path[:number], ".".join(map(str, path[number:])))
                break
            at = at[part]
        key = path[-1]
        at[key if key not in at else ".".join(map(str, path))] = leaf
    return {key: _with_lists(value, made) for key, value in root.items()}


def _with_lists(value: Any, made: dict[int, dict[Any, Any]]) -> Any:
    if id(value) not in made:
        return value
    plain = {key: _with_lists(part, made) for key, part in value.items()}
    if plain and all(type(key) is int for key in plain) and set(plain) == set(range(len(plain))):
        return [plain[number] for number in range(len(plain))]
    return plain
