"""Holdfast's own checkpoint folders: whole if there is a manifest and the files are what it says.

The tree is {"model": …, "averages": …, "training": …, "manifest": …}; further models are "model-1" …; the parts of a sharded
state stand beside them under their own names.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from holdfast.checkpoints.contents import Contents
from holdfast.checkpoints.formats.distributed_folder import open_distributed
from holdfast.checkpoints.formats.files import BadJson, few, is_inside, read_json, shown
from holdfast.checkpoints.formats.joining import add_file, denied, join, open_part
from holdfast.checkpoints.formats.one_file import open_file
from holdfast.checkpoints.manifest import FORMAT, MANIFEST

_SHARDS = "shards"
_OLDER = "use an older one: holdfast checkpoints list shows which are whole"
_KEYS = {"weights": "model", "average": "averages"}


def open_holdfast(path: Path) -> Contents:
    """A checkpoint of Holdfast's own."""
    contents = Contents(path=path, format="holdfast", producer="holdfast", tree={})
    manifest = _read_manifest(contents)
    names = _names(contents, manifest)
    for name in names:
        _add_part(contents, name, manifest)
    if (path / _SHARDS).is_dir():
        _add_shards(contents)
    _compare_sizes(contents, manifest)
    if manifest is not None:
        _take_facts(contents, manifest)
    return contents


def _read_manifest(contents: Contents) -> dict[str, Any] | None:
    """The manifest, if it is one; what is wrong with it becomes a trouble."""
    path = contents.path / MANIFEST
    try:
        manifest = read_json(path)
        if not (
            isinstance(manifest, dict)
            and isinstance(manifest.get("files"), dict)
            and manifest["files"]
            and manifest.get("format")
        ):
            raise BadJson("it does not say what the files must be")
    except FileNotFoundError:
        removed = contents.path.name.startswith(".gone-")
        why = "it was being removed" if removed else "the save was interrupted before it was complete"
        contents.trouble("torn", f"It has no manifest: {why}.", _OLDER, MANIFEST)
        return None
    except OSError as error:
        denied(contents, error, MANIFEST)
        return None
    except BadJson as error:
        add_file(contents, path)
        contents.trouble("torn", f"Its manifest is damaged: {error}.", _OLDER, MANIFEST)
        return None
    add_file(contents, path)
    if manifest["format"] != FORMAT:
        message = f"It was written by a different version of Holdfast: its manifest has format {manifest['format']!r}."
        contents.trouble("unreadable", message, "update Holdfast", MANIFEST)
    return manifest


def _names(contents: Contents, manifest: dict[str, Any] | None) -> list[str]:
    """The files to open: those that the manifest names, or those that are there."""
    if manifest is None:
        try:
            there = sorted(entry.name for entry in contents.path.iterdir())
        except OSError:
            return []
        return [name for name in there if name.endswith((".safetensors", ".pt"))]
    names = []
    for name in manifest["files"]:
        if not is_inside(name):
            message = f"Its manifest names a file outside its folder: {shown(name)}."
            contents.trouble("unreadable", message, "do not load it", MANIFEST)
        elif not name.startswith(f"{_SHARDS}/") and name.endswith((".safetensors", ".pt")):
            names.append(name)
    return names


def _add_part(contents: Contents, name: str, manifest: dict[str, Any] | None) -> None:
    path = contents.path / name
    part = open_part(contents, path, open_file) if path.exists() else None  # one that is missing is told with the sizes
    if part is None:
        return
    facts = manifest["files"][name] if manifest else None
    if part.format == "safetensors" and isinstance(facts, dict) and not part.troubles:
        _take_checksums(contents, part, name, facts)
    stem, _, number = PurePosixPath(name).stem.partition("-")
    key = _KEYS.get(stem, stem) + (f"-{number}" if number else "")
    contents.tree[key] = join(contents, part, file=name, key=key)


def _take_checksums(contents: Contents, part: Contents, name: str, facts: dict[str, Any]) -> None:
    """Each tensor's checksum goes to its bytes, for `verify`; the header's is compared here."""
    path = part.path
    size = min((storage.offset for storage in part.storages), default=part.size)
    stated = _number(facts.get("crc32"))
    with path.open("rb") as file:
        if stated is not None and zlib.crc32(file.read(size)) != stated:
            message = f"{name} does not match its manifest: the names and places of its tensors were changed."
            contents.trouble("torn", message, _OLDER, name)
    tensors = facts.get("tensors")
    table = tensors if isinstance(tensors, dict) else {}
    sums = {key: _number(value.get("crc32")) for key, value in table.items() if isinstance(value, dict)}
    there = {storage.name for storage in part.storages}
    if table and there != set(table):
        message = f"{name} holds other tensors than its manifest says: {few(sorted(there ^ set(table)))}."
        contents.trouble("torn", message, _OLDER, name)
    part.storages[:] = [replace(storage, crc32=sums.get(storage.name)) for storage in part.storages]
    bad = [key for key, value in table.items() if isinstance(value, dict) and value.get("non_finite")]
    if bad:
        contents.notes.append(f"{name}: when it was saved, {len(bad)} tensors held non-finite values: {few(bad)}")


def _number(text: Any) -> int | None:
    """A checksum from its eight digits; None if there is none."""
    try:
        return int(text, 16) if isinstance(text, str) and len(text) == 8 else None
    except ValueError:
        return None


def _add_shards(contents: Contents) -> None:
    part = open_part(contents, contents.path / _SHARDS, open_distributed)
    tree = join(contents, part, file=_SHARDS) if part is not None else None
    for name, value in tree.items() if isinstance(tree, dict) else ():
        key, _, rest = str(name).partition(".")
        within = contents.tree.setdefault(_KEYS.get(key, key), {})
        if isinstance(within, dict):
            within[rest] = value


def _compare_sizes(contents: Contents, manifest: dict[str, Any] | None) -> None:
    """Told for files about which nothing more exact is known."""
    in_trouble = {trouble.where for trouble in contents.troubles}
    for name, facts in (manifest["files"] if manifest else {}).items():
        if name in in_trouble or not is_inside(name):
            continue
        info = add_file(contents, contents.path / name)
        wanted = facts.get("size") if isinstance(facts, dict) else None
        if info is None:
            contents.trouble("torn", f"{shown(name)} is missing, and its manifest names it.", _OLDER, name)
        elif type(wanted) is not int:
            contents.trouble("torn", f"Its manifest is damaged: it does not say how long {shown(name)} is.", _OLDER, name)
        elif info.size != wanted:
            less = f"{abs(wanted - info.size):,} bytes {'shorter' if info.size < wanted else 'longer'}"
            contents.trouble("torn", f"{name} is {less} than its manifest says.", _OLDER, name)


def _take_facts(contents: Contents, manifest: dict[str, Any]) -> None:
    files = {
        name: {k: v for k, v in facts.items() if k != "tensors"}
        for name, facts in manifest["files"].items()
        if isinstance(facts, dict)
    }
    contents.tree["manifest"] = {**manifest, "files": files}
    contents.versions["format"] = str(manifest["format"])
    versions = manifest.get("versions")
    for name, value in versions.items() if isinstance(versions, dict) else ():
        if isinstance(value, str):
            contents.versions[name] = value
