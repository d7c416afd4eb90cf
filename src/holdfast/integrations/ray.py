"""Ray Train: every worker of a `TorchTrainer` watched, and Ray's own restarts from a checkpoint that was verified.

trainer = TorchTrainer(watched(train_func, name="llm", folder="/shared/runs"), scaling_config=…, run_config=…)
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from holdfast.integrations.trainer_run import TrainerRun, first_clean

try:
    import ray.train
    from ray.train import Checkpoint
except ImportError:
    raise ImportError('Holdfast for Ray needs Ray Train: pip install "ray[train]"') from None


def watched(train_func: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The train function, recorded on every worker; `options` are those of `holdfast.watch`: name, folder, policy, …

    `ray.train.report` records the metrics, and passes a checkpoint on only if it is whole and finite: else Ray keeps the one
    before. `ray.train.get_checkpoint` gives the newest that still is. A restart by Ray is a run of its own that names the
    checkpoint it resumed from.
    """

    @functools.wraps(train_func)
    def train(*config: Any) -> Any:
        name = str(options.get("name") or ray.train.get_context().get_experiment_name() or "ray")
        chosen = {**options, "name": name, "folder": Path(options.get("folder", "runs")).absolute()}
        with _one_folder(), _Worker(TrainerRun(**chosen), train_func) as worker:
            try:
                return train_func(*config)
            finally:
                worker.run.end()

    if not inspect.signature(train_func).parameters:  # Ray hands over `train_loop_config` to whoever takes a parameter
        train.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
    return train


@contextmanager
def _one_folder() -> Iterator[None]:
    """Have the workers of one attempt share a folder, as those of torchrun do."""
    with patch.dict(os.environ, {"TORCHELASTIC_RUN_ID": "ray"}):
        yield


class _Worker:
    """One worker: its run, and Ray's two functions as the train function sees them."""

    def __init__(self, run: TrainerRun, train_func: Callable[..., Any]) -> None:
        self.run = run
        self._report, self._get = ray.train.report, ray.train.get_checkpoint
        self._names = getattr(train_func, "__globals__", {})  # `from ray.train import report`
        self._patches: list[Any] = []

    def __enter__(self) -> _Worker:
        self.run.begin((), (), stop=None)
        for name, ours in (("report", self.report), ("get_checkpoint", self.get_checkpoint)):
            theirs = getattr(ray.train, name)
            here = {key: ours for key, value in self._names.items() if value is theirs}
            self._patches += [patch.object(ray.train, name, ours), patch.dict(self._names, here)]
        for one in self._patches:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in reversed(self._patches):
            one.stop()

    def report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None = None, **kwargs: Any) -> None:
        """`ray.train.report`, without a checkpoint that cannot be resumed from."""
        if ray.train.get_context().get_world_rank() == 0:
            self.run.evaluated(metrics)
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                if self.run.run is not None:
                    self.run.run.saved(folder)
                checkpoint = checkpoint if _clean(folder) else None
        self._report(metrics, checkpoint=checkpoint, **kwargs)

    def get_checkpoint(self) -> Checkpoint | None:
        """`ray.train.get_checkpoint`, or the one before it if that was damaged meanwhile."""
        newest = self._get()
        if newest is None or not Path(newest.path).is_dir():  # none, or one in a bucket: Ray has checked its upload
            return newest
        before = (path for path in Path(newest.path).parent.iterdir() if path.is_dir() and path != Path(newest.path))
        folders = [Path(newest.path), *sorted(before, key=lambda path: path.stat().st_mtime, reverse=True)]
        found = next((folder for folder in folders if _clean(folder)), None)
        if found is not None and self.run.run is not None:
            self.run.run.resumed(found)
        return None if found is None else Checkpoint.from_directory(str(found))


def _clean(folder: str | Path) -> bool:
    """Whether every file of tensors in a checkpoint's folder is whole and finite."""
    files = [path for path in Path(folder).rglob("*") if path.suffix in (".pt", ".pth", ".bin", ".ckpt", ".safetensors")]
    return all(first_clean([path]) is not None for path in files)
