"""The tree of a checkpoint in a terminal and in JSON: keys, shapes, values, with equal layers shown once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.contents import Opaque, TensorInfo
from holdfast.checkpoints.names import ITEM_SIZES
from holdfast.checkpoints.parts import is_module, is_state_dict, parts_of
from holdfast.probe.words import plain

if TYPE_CHECKING:
    from rich.tree import Tree

_ENTRIES, _FEW = 24, 8  # of one level, before the rest is only counted
_DEPTHS, _DEPTH = {"weights": 5, "ema": 5, "optimizer": 3}, 2  # levels that are shown of each part
_LOOSE = 8  # numbered entries of several shapes, before these are skipped
_VALUES = 6  # of a list that is told in a line
_TEXT = 60
_DIGITS = 16
_DEEPEST = 60  # levels, in JSON and with --all


def tree_of(tree: Any, *, depth: int | None, everything: bool, width: int) -> Tree:
    """The tree as it is printed. Without a depth, weights are shown deeper than what stands beside them."""
    from rich.tree import Tree

    root = Tree("", hide_root=True, guide_style="dim")
    growing = _Growing(everything=everything, width=width)
    if everything or depth is not None or is_state_dict(tree) or not isinstance(tree, dict):
        growing.grow(root, _children(tree), _DEEPEST if everything else depth or _DEPTHS["weights"], 1)
        return root
    deepest: dict[Any, int] = {}
    for part in parts_of(tree):
        depth = _DEPTHS.get(part.role, _DEPTH) + len(part.path) - 1
        deepest[part.path[0]] = max(depth, deepest.get(part.path[0], 0))
    for key, value in tree.items():
        depth = deepest.get(key, _DEPTH)
        growing.grow(root, [(str(key), value)], depth, 1, few=depth <= _DEPTH)
    return root


class _Growing:
    """Adds branches; each is one line, cut to the width."""

    def __init__(self, *, everything: bool, width: int) -> None:
        self._everything, self._width = everything, width

    def grow(self, branch: Tree, children: list[tuple[str, Any]], depth: int, level: int, *, few: bool = False) -> None:
        entries = [((name, name), value) for name, value in children] if self._everything else list(_folded(children))
        if not self._everything and len(entries) > _LOOSE and (alike := _alike_but_for_shapes(children)):
            branch.add(_dim(alike))
            return
        most = _FEW if few else _ENTRIES
        shown = entries if self._everything or len(entries) <= most else entries[: most - 2]
        for (first, last), value in shown:
            count = 1 + int(last) - int(first) if first != last else 1
            name = f"{first} … {last} ({count} alike)" if count > 1 else first
            inner = _children(value)
            line = self._line(name, value, inner, hidden=depth <= 1, level=level)
            new = branch.add(line)
            if inner and depth > 1:
                self.grow(new, inner, depth - 1, level + 1, few=few)
        if len(entries) > len(shown):
            branch.add(_dim(f"and {len(entries) - len(shown):,} more: --all shows them"))

    def _line(self, name: str, value: Any, inner: list[tuple[str, Any]], *, hidden: bool, level: int) -> Any:
        from rich.text import Text

        text = Text(plain(name)[:_TEXT], no_wrap=True, overflow="ellipsis")
        if isinstance(value, TensorInfo):
            text.append(f"  {tensor_words(value)}", "cyan")
        elif isinstance(value, Opaque):
            text.append(f"  {class_words(value)}", "magenta")
        elif not inner:
            text.append(f"  {value_words(value)}", "green")
        if inner and hidden:
            text.append(f"  {_amount(inner)}", "dim")
        text.truncate(max(20, self._width - 4 * level), overflow="ellipsis")
        return text


def _dim(text: str) -> Any:
    from rich.text import Text

    return Text(text, "dim")


def _children(value: Any) -> list[tuple[str, Any]]:
    """What stands below: of a state dict its modules by the dots in its names, of a pickled module its modules and parameters."""
    if is_state_dict(value):
        return _by_dots(value)
    if is_module(value):
        groups = (
            value.state[name] for name in ("_modules", "_parameters", "_buffers") if isinstance(value.state.get(name), dict)
        )
        return [(str(name), inner) for group in groups for name, inner in group.items() if inner is not None]
    if isinstance(value, Opaque):
        inside = value.state if isinstance(value.state, (dict, list)) else None
        return (
            _children(inside)
            if inside
            else [(str(at), argument) for at, argument in enumerate(value.arguments) if _has_inner(argument)]
        )
    if isinstance(value, dict):
        return _in_order({str(name): inner for name, inner in value.items()})
    if isinstance(value, (list, tuple)) and any(_has_inner(item) for item in value):
        return [(str(at), inner) for at, inner in enumerate(value)]
    return []


def _has_inner(value: Any) -> bool:
    return isinstance(value, (dict, TensorInfo, Opaque)) or (isinstance(value, (list, tuple)) and any(map(_has_inner, value)))


def _by_dots(table: dict[str, Any]) -> list[tuple[str, Any]]:
    """A state dict as the modules that its names tell."""
    root: dict[str, Any] = {}
    for name, value in table.items():
        if name == "__metadata__":
            continue
        *path, last = name.split(".")
        node = root
        for part in path:
            inner = node.get(part)
            if not isinstance(inner, dict):
                inner = {} if inner is None else {"": inner}  # a parameter and a module of one name
                node[part] = inner
            node = inner
        node[last] = value
    return _in_order(root)


def _in_order(table: dict[str, Any]) -> list[tuple[str, Any]]:
    """Entries; those that are numbered by their number, as some formats sort them as text."""
    return sorted(table.items(), key=lambda item: int(item[0])) if all(map(_is_number, table)) else list(table.items())


def _is_number(name: str) -> bool:
    return name.isdecimal() and len(name) < _DIGITS


def _folded(children: list[tuple[str, Any]]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Entries, with neighbours that are numbered in a row and alike as one: the first number, the last, and the first entry."""
    at = 0
    shapes = [_shape(value) if _is_number(name) else None for name, value in children]
    while at < len(children):
        name, value = children[at]
        end = at + 1
        while (
            end < len(children)
            and shapes[at] is not None
            and shapes[end] == shapes[at]
            and int(children[end][0]) == int(name) + end - at
        ):
            end += 1
        if end - at > 2:
            yield (name, children[end - 1][0]), value
        else:
            yield from (((name, name), inner) for name, inner in children[at:end])
        at = max(end, at + 1)


def _alike_but_for_shapes(children: list[tuple[str, Any]]) -> str:
    """A line for numbered entries that all have the same keys, as an optimizer's state has; empty if they have not."""
    keys = [tuple(name for name, _ in _children(value)) for _, value in children]
    if not keys[0] or len(set(keys)) > 1 or not all(_is_number(name) for name, _ in children):
        return ""
    label = f"{children[0][0]} … {children[-1][0]} ({len(children)} alike but for their shapes)"
    return f"{label}  each {', '.join(keys[0][:_VALUES])}  {_amount(children)}"


def _shape(value: Any, depth: int = 12) -> Any:
    """Equal for two things that look alike in the tree."""
    if isinstance(value, TensorInfo):
        return value.dtype, value.shape
    inner = _children(value)
    if inner and depth:
        name = value.name if isinstance(value, Opaque) else ""
        return name, tuple((key, _shape(child, depth - 1)) for key, child in inner)
    return type(value).__name__, value.name if isinstance(value, Opaque) else None


def _amount(inner: list[tuple[str, Any]]) -> str:
    from holdfast.checkpoints.parts import tensors_in

    tensors = {(tensor.storage, tensor.offset, tensor.shape): tensor for _, value in inner for tensor in tensors_in(value)}
    if not tensors:
        return f"{len(inner)} entries" if len(inner) > 1 else "1 entry"
    from holdfast.cli.show import size

    total = sum(map(bytes_of, tensors.values()))
    return f"{len(tensors):,} tensor{'s' if len(tensors) > 1 else ''}, {size(total)}"


def bytes_of(tensor: TensorInfo) -> int:
    """Bytes of a tensor's numbers."""
    return tensor.count * ITEM_SIZES.get(tensor.dtype, 1)


def tensor_words(tensor: TensorInfo) -> str:
    """Kind, shape and size: float32 [4096, 1024] 16 MB."""
    from holdfast.cli.show import size

    shape = f" {list(tensor.shape)}" if tensor.shape else ""
    return f"{tensor.dtype}{shape} {size(bytes_of(tensor))}" if tensor.shape else f"{tensor.dtype}, one number"


def class_words(value: Opaque) -> str:
    """The name of a class; of torch's own layers the last part."""
    name = plain(value.name)[:_TEXT]
    if name.startswith("torch.nn.modules."):
        return name.rpartition(".")[2]
    if len(value.arguments) == 1 and isinstance(value.arguments[0], (str, int, float)) and value.state is None:
        return f"{name.rpartition('.')[2]}({value_words(value.arguments[0])})"  # a member of an enumeration
    return name


def value_words(value: Any) -> str:
    """A plain value in a line."""
    if isinstance(value, str):
        text = plain(value)
        return repr(text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…")
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, Opaque):
        return class_words(value)
    if isinstance(value, TensorInfo):
        return tensor_words(value)
    if isinstance(value, dict):
        return f"{{{len(value)} entries}}" if value else "{}"
    if isinstance(value, (list, tuple)):
        few = ", ".join(value_words(item) for item in value[:_VALUES])
        return f"[{few}{f', … {len(value):,} in all' if len(value) > _VALUES else ''}]"
    return plain(str(value))[:_TEXT]


def plain_tree(value: Any, depth: int = _DEEPEST) -> Any:
    """A tree that JSON can hold: a tensor as its kind and shape, an object that was not made as its name."""
    if depth <= 0:
        return "…"
    if isinstance(value, TensorInfo):
        return {"tensor": value.dtype, "shape": list(value.shape)}
    if isinstance(value, Opaque):
        inside = {"state": plain_tree(value.state, depth - 1)} if value.state is not None else {}
        arguments = {"arguments": [plain_tree(argument, depth - 1) for argument in value.arguments]} if value.arguments else {}
        return {"class": value.name, **arguments, **inside}
    if isinstance(value, dict):
        return {str(key): plain_tree(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_tree(item, depth - 1) for item in value]
    return f"{len(value)} bytes" if isinstance(value, bytes) else value
