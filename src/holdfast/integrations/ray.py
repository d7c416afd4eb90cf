"""Ray Train: every worker of a `TorchTrainer` watched, and Ray's own restarts from a checkpoint that was verified.

trainer = TorchTrainer(watched(train_func, name="llm", folder="/shared/runs"), scaling_config=…, run_config=…)

`report` and `get_checkpoint` are called in the train function in the place of Ray's; nothing of Ray is replaced.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.checkpoints.clean import first_clean
from holdfast.integrations.trainer_run import TrainerRun

try:
    import ray.train
    from ray.train import Checkpoint
except ImportError:
    raise ImportError('Holdfast for Ray needs Ray Train: pip install "ray[train]"') from None

_worker = TrainerRun()  # a worker is a process of its own; without `watched` it has no run


def watched(train_func: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The train function, recorded on every worker; `options` are those of `holdfast.watch`: name, folder, policy, …

    A restart by Ray is a run of its own that names the checkpoint it resumed from.
    """

    @functools.wraps(train_func)
    def train(*config: Any) -> Any:
        _begin(options)  # by functions of this module: Ray sends this one to the workers with a copy of the variables it names
        try:
            return train_func(*config)
        finally:
            _end()

    if not inspect.signature(train_func).parameters:  # Ray hands over `train_loop_config` to whoever takes a parameter
        train.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
    return train


def report(metrics: dict[str, Any], checkpoint: Checkpoint | None = None, **kwargs: Any) -> None:
    """`ray.train.report`; the metrics are recorded, and a checkpoint that is torn or not finite is not passed on to Ray."""
    _worker.evaluated(metrics)
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:  # often a temporary one, so it is verified now
            checkpoint = checkpoint if _clean(folder) else None
    ray.train.report(metrics, checkpoint=checkpoint, **kwargs)


def get_checkpoint() -> Checkpoint | None:
    """`ray.train.get_checkpoint`, or the newest one before it that is whole and finite, if it was damaged meanwhile."""
    newest = ray.train.get_checkpoint()
    if newest is None or not Path(newest.path).is_dir():  # none, or one in a bucket: Ray has checked its upload
        return newest
    before = (path for path in Path(newest.path).parent.iterdir() if path.is_dir() and path != Path(newest.path))
    folders = [Path(newest.path), *sorted(before, key=lambda path: path.stat().st_mtime, reverse=True)]
    checkpoint = next((folder for folder in folders if _clean(folder)), None)
    if checkpoint is not None and _worker.run is not None:
        _worker.run.resumed(checkpoint, step=0)  # the steps of this run count from 0
    return None if checkpoint is None else Checkpoint.from_directory(str(checkpoint))


def _begin(options: dict[str, Any]) -> None:
    """Start the run of this worker. The workers of one attempt share a folder, as those of one start of torchrun do."""
    global _worker
    name = str(options.get("name") or ray.train.get_context().get_experiment_name() or "ray")
    _worker = TrainerRun(**{**options, "name": name, "folder": Path(options.get("folder", "runs")).absolute()})
    before = os.environ.get("TORCHELASTIC_RUN_ID")
    os.environ["TORCHELASTIC_RUN_ID"] = before or "ray"
    try:
        _worker.begin((), (), stop=None)
    finally:
        if before is None:
            del os.environ["TORCHELASTIC_RUN_ID"]


def _end() -> None:
    _worker.end()


def _clean(folder: str | Path) -> bool:
    """Whether every file of tensors in a checkpoint's folder is whole and finite."""
    files = [path for path in Path(folder).rglob("*") if path.suffix in (".pt", ".pth", ".bin", ".ckpt", ".safetensors")]
    return all(first_clean([path]) is not None for path in files)
