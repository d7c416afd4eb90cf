"""Initial weights: from a file, a checkpoint folder or the hub into a model whose classes may be others."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.checkpoints.formats.files import few
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.tensors import Tensors
from holdfast.errors import UsageError
from holdfast.matching.from_contents import averaged_weights, own_weights

_PREFIXES = ("module.", "_orig_mod.", "ema.")  # what wrappers put before the names
_HUB_SECONDS = 5.0
_FILE = "model.safetensors"
_FILES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".onnx", ".yaml")
_FIX = "--weights none trains from scratch; --weights PATH takes a local file or folder"


def fill(kind: Any, config: Any, architecture: str, source: str) -> tuple[nn.Module, str]:
    """A model of this kind with the weights of `source`, and a line that says what was taken. Raises UsageError."""
    tensors = read_weights(Path(source) if Path(source).exists() else from_hub(source))
    taken = {
        name: tensor
        for name, tensor in tensors.items()
        if not is_class_head(name) or len(tensor) == _rows(name, config.num_labels)
    }
    try:
        with _quiet():
            model, report = kind.from_pretrained(
                None, config=config, state_dict=taken, ignore_mismatched_sizes=True, output_loading_info=True
            )
    except RuntimeError as error:  # some versions fail in the comparison of tied weights when shapes differ
        raise _other_architecture(source, architecture, "shapes differ") from error
    parameters = dict(model.named_parameters())
    mismatched = {entry if isinstance(entry, str) else entry[0] for entry in report["mismatched_keys"]}
    left = {name for name in report["missing_keys"] if name in parameters} | mismatched
    if unfit := sorted(name for name in left if not is_class_head(name)):
        raise _other_architecture(source, architecture, f"{len(unfit)} of {len(parameters)} parameters, such as {unfit[0]}")
    line = f"{source}: {len(parameters) - len(left)} of {len(parameters)} parameters loaded"
    if left:
        line += f"; class heads are new, for {config.num_labels} classes: {few(sorted(left))}"
    return model.float(), line


def _other_architecture(source: str, architecture: str, what: str) -> UsageError:
    fix = "--architecture with the one that they were trained with, or --weights none"
    return UsageError(f"the weights in {source} do not fit {architecture}: {what}.", fix=fix)


def _rows(name: str, classes: int) -> int:
    """The rows of a class head; denoising has one more, for padding."""
    return classes + 1 if "denoising" in name else classes


def is_class_head(name: str) -> bool:
    """Whether this part of a model has one row per class."""
    return "class_embed" in name or "score_head" in name


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the package's own progress bar and table of what did not fit: our line says it."""
    log = importlib.import_module("transformers.utils.logging")
    level = log.get_verbosity()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        log.enable_progress_bar()


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint by name, averaged ones before others. Nothing inside is run."""
    contents = open_checkpoint(path)
    if contents.troubles:
        trouble = contents.troubles[0]
        raise UsageError(f"{path} is {trouble.state}: {trouble.text}", fix=trouble.fix)
    infos = averaged_weights(contents) or own_weights(contents)
    if not infos:
        raise UsageError(f"{path} holds no weights.", fix=_FIX)
    with Tensors(contents) as tensors:
        return {_bare(name): tensors.tensor(info) for name, info in infos.items()}


def _bare(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return _bare(name.removeprefix(prefix))
    return name


def from_hub(name: str) -> Path:
    """The file with the weights: from the cache, else from the hub, which is given a few seconds to answer."""
    if Path(name).suffix in _FILES or name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UsageError(f"there are no weights at {name}.", fix=_FIX)
    hub = importlib.import_module("huggingface_hub")
    errors = importlib.import_module("huggingface_hub.errors")
    failures = (OSError, ValueError, errors.HfHubHTTPError.__bases__[0])  # the last is of the HTTP client that it uses
    try:
        return Path(hub.hf_hub_download(name, _FILE, local_files_only=True))
    except failures:
        pass
    try:
        hub.HfApi().model_info(name, timeout=_HUB_SECONDS)  # asked once; a download would try five times
        return Path(hub.hf_hub_download(name, _FILE, etag_timeout=_HUB_SECONDS))
    except errors.RepositoryNotFoundError:
        raise UsageError(f"the hub has no model {name!r}, or it is not public.", fix=_FIX) from None
    except failures as error:
        reason = type(error).__name__
        raise UsageError(
            f"the weights {name} are not in the cache, and the hub cannot be reached ({reason}).", fix=_FIX
        ) from None
