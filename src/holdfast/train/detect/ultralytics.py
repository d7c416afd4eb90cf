"""YOLO, trained by the Ultralytics package that the user has installed, in a process of its own.

Ultralytics has the licence AGPL-3.0: Holdfast neither imports it nor depends on it. It is found by its folder, and started as
any other command under the supervisor, with our settings in its words.
"""

from __future__ import annotations

import difflib
import importlib.util
import itertools
import math
import pickletools
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import yaml

from holdfast.checkpoints.manifest import kept_in
from holdfast.data.cache import cache_folder, fingerprint
from holdfast.errors import UsageError
from holdfast.train.settings import DetectSettings, TrainSettings

_START = """
from holdfast.integrations.ultralytics import EVENTS, HoldfastCallbacks
from ultralytics.cfg import entrypoint
from ultralytics.utils.callbacks import default_callbacks

callbacks = HoldfastCallbacks()
for event in EVENTS:
    default_callbacks[event].append(getattr(callbacks, event))
entrypoint()
"""  # what its command `yolo` does, recorded with its epochs and metrics
_CLIPPED_AT = 10.0
_AUGMENTATIONS = ("hsv_h", "hsv_s", "hsv_v", "degrees", "translate", "scale", "fliplr", "mosaic")
_SAME_NAME = (
    "epochs", "imgsz", "lrf", "weight_decay", "warmup_epochs", "warmup_momentum", "patience", "seed", "workers", "dropout",
    "close_mosaic",
)  # fmt: skip
_COMPILED = {"max-autotune": "max-autotune-no-cudagraphs"}  # as Ultralytics has it


def is_yolo(architecture: str) -> bool:
    """Whether an architecture is one that Ultralytics trains."""
    return architecture.lower().startswith("yolo")


def trains(settings: TrainSettings) -> TypeGuard[DetectSettings]:
    """Whether these are settings of a training that Ultralytics does."""
    return isinstance(settings, DetectSettings) and is_yolo(settings.architecture)


def check(settings: DetectSettings) -> None:
    """Raise UsageError where Ultralytics is missing or does not have what is asked for."""
    _check(settings, _package())


def command(settings: DetectSettings, folder: Path, *, resume: Path | None = None) -> list[str]:
    """The command that trains into `folder`; `resume` is a last.pt of an earlier start. Raises UsageError."""
    package = _package()
    _check(settings, package)
    start = [sys.executable, "-c", _START, "detect", "train"]
    if resume is not None:
        return [*start, "resume=True", f"model={resume.resolve()}", f"save_dir={folder.resolve()}"]
    values = {
        "data": _data_file(settings.data),
        **translated(settings),
        "amp": _precision(settings.half, package),
        "project": folder.resolve().parent,
        "name": folder.name,
        "exist_ok": True,
    }
    return [*start, *(f"{name}={value}" for name, value in values.items())]


class Saved(NamedTuple):
    """A checkpoint of Ultralytics, and how many epochs it holds; none once it is finished, and its optimizer state is gone."""

    file: Path
    epochs: int


def newest(folder: Path, before: int | None = None) -> Saved | None:
    """The checkpoint of the most epochs, `before` a step, to resume from. A process killed while it saves leaves a torn file."""
    checkpoints = [Saved(file, epochs) for file in (folder / "weights").glob("*.pt") if (epochs := _epochs_in(file)) is not None]
    if before is not None:  # Ultralytics overwrites its last one; the callbacks have copies of it, and say how long an epoch is
        kept = [one for one in kept_in(folder / "weights" / "state") if one.epoch]
        copies = [Saved(one.path.with_name(f"epoch-{one.epoch}.pt"), one.epoch or 0) for one in kept]
        whole = [*checkpoints, *(copy for copy in copies if _epochs_in(copy.file) == copy.epochs)]
        steps = max((one.step / (one.epoch or 1) for one in kept), default=math.inf)
        return max((saved for saved in whole if 0 < saved.epochs * steps < before), key=lambda saved: saved.epochs, default=None)
    finished = [saved for saved in checkpoints if saved.file.name == "last.pt" and not saved.epochs]
    return max(finished or checkpoints, key=lambda saved: (saved.epochs, saved.file.name == "last.pt"), default=None)


def _epochs_in(file: Path) -> int | None:
    """The number of epochs that a checkpoint was trained for, read without loading it; None where it is not whole."""
    try:
        with zipfile.ZipFile(file) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            parts = (part for part in pickletools.genops(archive.read(name)) if "PUT" not in part[0].name)
            return next(int(value or 0) + 1 for (_, key, _), (_, value, _) in itertools.pairwise(parts) if key == "epoch")
    except (OSError, zipfile.BadZipFile, StopIteration, ValueError, TypeError):
        return None


def cut_results(folder: Path, epochs: int) -> None:
    """Leave only the first epochs in results.csv: a process may have died after it wrote a row and before it saved."""
    table = folder / "results.csv"
    if table.is_file():
        lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
        new = table.with_suffix(".new")
        new.write_text("".join(lines[: epochs + 1]), encoding="utf-8")
        new.replace(table)


def remarks(settings: DetectSettings) -> list[str]:
    """What the user should know before it starts, one line each."""
    lines = ["Ultralytics trains this model; its licence is AGPL-3.0."]
    if settings.max_grad_norm != _CLIPPED_AT:
        lines.append(
            f"Ultralytics clips the gradient norm at {_CLIPPED_AT:g}; max_grad_norm {settings.max_grad_norm:g} is not used."
        )
    if settings.batch_size == "auto":
        lines.append("Ultralytics chooses the batch size, and accumulates up to 64 images per update.")
    return lines


def translated(settings: DetectSettings) -> dict[str, Any]:
    """Our settings under Ultralytics' names. Where lr0 is not set, it chooses optimizer and learning rate itself."""
    values: dict[str, Any] = {"model": _model(settings), "pretrained": settings.weights != "none"}
    values |= {name: getattr(settings, name) for name in _SAME_NAME}
    values |= {name: getattr(settings, name) if settings.augment else 0.0 for name in _AUGMENTATIONS}
    values["batch"] = -1 if settings.batch_size == "auto" else settings.batch_size
    if settings.batch_size != "auto":
        values["nbs"] = settings.batch * settings.accumulate
    values["cache"] = False if settings.cache == "false" else settings.cache
    values["save_period"] = settings.save_period or -1
    values["cos_lr"] = settings.scheduler == "cosine"
    if settings.scheduler == "constant":
        values["lrf"] = 1.0
    if settings.lr0 is not None or settings.optimizer == "sgd":
        values["optimizer"] = {"adamw": "AdamW", "sgd": "SGD"}[settings.optimizer]
        values["momentum"] = settings.momentum
        values["warmup_bias_lr"] = 0.1 if settings.optimizer == "sgd" else 0.0  # its default is meant for SGD
    if settings.lr0 is not None:
        values["lr0"] = settings.lr0
    if settings.device != "auto":
        values["device"] = settings.device
    if settings.compile != "none":
        values["compile"] = _COMPILED.get(settings.compile, settings.compile)
    return values


def _model(settings: DetectSettings) -> str:
    """A description trains from scratch; weights are a file, which Ultralytics downloads where it is a published one."""
    if settings.weights == "none":
        return f"{settings.architecture}.yaml"
    if settings.weights == "auto":
        return f"{settings.architecture}.pt"
    path = Path(settings.weights)
    if not path.is_file() or path.suffix != ".pt":
        raise UsageError(
            f"{settings.weights} is not a .pt file, which YOLO needs.",
            fix="--weights with such a file, auto (downloaded by Ultralytics) or none (from scratch)",
        )
    return str(path.resolve())


def _package() -> Path:
    """The folder of Ultralytics, found without importing it."""
    spec = importlib.util.find_spec("ultralytics")
    if spec is None or spec.origin is None:
        raise UsageError(
            "YOLO needs Ultralytics, which is not installed (licence AGPL-3.0).",
            fix="pip install ultralytics, or --architecture dfine-n, which needs only holdfast[detect] (Apache-2.0)",
        )
    return Path(spec.origin).parent


def _check(settings: DetectSettings, package: Path) -> None:
    """Refuse what Ultralytics does not have."""
    if settings.architecture not in (names := _architectures(package)):
        near = difflib.get_close_matches(settings.architecture.lower(), names, n=1)
        fix = f"--architecture {near[0]}" if near else f"--architecture with one of {', '.join(names)}"
        raise UsageError(f"Ultralytics has no architecture {settings.architecture!r}.", fix=fix)
    if settings.scheduler == "step":
        raise UsageError("Ultralytics has no step schedule.", fix="--scheduler cosine, linear or constant")
    if settings.fsdp:
        raise UsageError("Ultralytics cannot shard a model (FSDP).", fix="leave --fsdp out: two devices then train with DDP")
    if settings.batch_size == "auto" and settings.accumulate > 1:
        raise UsageError("with --batch-size auto, Ultralytics decides how much is accumulated.", fix="--batch-size 16")


def _architectures(package: Path) -> list[str]:
    """The detectors that this version describes: yolov8n, yolov8s, …"""
    names = []
    for file in sorted(package.glob("cfg/models/*/yolo*.yaml")):
        if "-" not in file.stem:
            scales = yaml.safe_load(file.read_text(encoding="utf-8")).get("scales") or {}
            names += [file.stem] if file.stem[-1] in scales or not scales else [f"{file.stem}{scale}" for scale in scales]
    return names


def _precision(half: str, package: Path) -> str | bool:
    """Mixed precision as this version names it; older ones have fp16 only."""
    if half == "none":
        return False
    lines = (package / "cfg" / "default.yaml").read_text(encoding="utf-8").splitlines()
    has_bf16 = any(line.startswith("amp:") and "bf16" in line for line in lines)
    return "bf16" if half == "bf16" and has_bf16 else True


def _data_file(data: str) -> Path:
    """The data.yaml. Ultralytics takes its `path` as relative to the working folder: a copy in the cache has the whole path."""
    file = Path(data) / "data.yaml" if Path(data).is_dir() else Path(data)
    if file.suffix not in (".yaml", ".yml") or not file.is_file():
        raise UsageError(
            f"{data} is not a YOLO data.yaml, which is all that Ultralytics reads.",
            fix="--data with a data.yaml, or --architecture dfine-n, which reads COCO and Pascal VOC too",
        )
    facts = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(facts, dict) or not (root := (file.parent / str(facts.get("path") or ".")).resolve()).is_dir():
        return file.resolve()
    copy = cache_folder() / "ultralytics" / f"{fingerprint(str(file.resolve()))}.yaml"
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(yaml.safe_dump({**facts, "path": str(root)}, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return copy.resolve()
