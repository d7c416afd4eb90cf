"""Find the logs in a folder: files that other tools write, folders that are a run, and Holdfast runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.logs.folders import STATE, has_events, kind_of, newest_state, split_folders
from holdfast.logs.mlflow_store import is_database
from holdfast.logs.open import SUFFIXES

_AT_MOST = 5000
_NOT_LOGS = {
    *("package.json", "package-lock.json", "tsconfig.json", "labels.csv", "requirements.txt", "args.yaml", "config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "added_tokens.json", "merges.txt"),
    *("generation_config.json", "preprocessor_config.json", "all_results.json", "train_results.json", "eval_results.json"),
    *("model.safetensors.index.json", "pytorch_model.bin.index.json", "adapter_config.json", "hparams.json", "vocab.txt"),
    *("readme.txt", "license.txt", "wandb-summary.json", "wandb-metadata.json", "debug.log", "debug-internal.log"),
}
_HIDDEN = (".", "__pycache__", "node_modules", "site-packages")
_DATABASES = (".db", ".sqlite", ".sqlite3")


def find_logs(folder: Path) -> Iterator[Path]:
    """Run folders of ours and of other tools, which count once, and files with the ending of a log, in order of their path."""
    for number, (where, folders, files) in enumerate(os.walk(folder)):
        if number > _AT_MOST:
            return
        here = Path(where)
        kind = kind_of(here)
        if kind in ("holdfast", "wandb", "mlflow"):
            folders.clear()
            yield here
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(_HIDDEN))
        if kind == "trainer":
            folders[:] = [name for name in folders if not name.startswith("checkpoint-") and not _same_run(here / name)]
            state = newest_state(here)
            files = [name for name in files if name != STATE]
            if state is not None:
                yield state
        elif kind == "tensorboard":
            splits = {path.name for path in split_folders(here)}
            folders[:] = [name for name in folders if name not in splits]
            yield here
        yield from (here / name for name in sorted(files) if is_log(here, name))


def _same_run(folder: Path) -> bool:
    """The event files that the Trainer writes below its output, `runs/<date>_<machine>`."""
    return folder.name == "runs" and any(has_events(path) for path in (folder, *folder.iterdir()) if path.is_dir())


def is_log(here: Path, name: str) -> bool:
    """Whether a file has the name of a log."""
    lower = name.lower()
    if lower.endswith(_DATABASES):
        return is_database(here / name) and "mlflow" in lower
    return lower.endswith(SUFFIXES) and lower not in _NOT_LOGS and "tfevents" not in lower
