"""The settings of a training: one list with default and help, read from flags, a YAML file, or both."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import yaml

from holdfast.errors import UsageError

_SettingsT = TypeVar("_SettingsT", bound="TrainSettings")


def _setting(
    default: Any, help: str, *, choices: Sequence[str] = (), least: float | None = None, most: float | None = None
) -> Any:
    """One setting. `least` and `most` are its limits."""
    value = {"default_factory": dict} if default == {} else {"default": default}
    return dataclasses.field(**value, metadata={"help": help, "choices": choices, "least": least, "most": most})


class Stage(NamedTuple):
    """A part of a training with a warm-up and a learning rate of its own: its peak, and its end as a fraction of that."""

    epochs: int
    lr: float | None
    final: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """What every task has: data, length, optimisation, machine, and where the run is written."""

    TASK: ClassVar[str] = ""
    MODEL: ClassVar[tuple[str, ...]] = ()  # settings that a resumed run keeps: they decide what its weights are
    STAGED: ClassVar[bool] = False  # whether a run can start from the weights of another stage, such as pre-training
    VALIDATED: ClassVar[bool] = True  # whether all of the data is validated before the training
    ALIASES: ClassVar[dict[str, str]] = {  # other names of settings, in flags and files
        "accumulation_steps": "accumulate",
        "num_workers": "workers",
        "checkpoint_dir": "project",
    }

    data: str = _setting("", "data set: a data.yaml, COCO file or folder")
    weights: str = _setting("auto", "initial weights: auto (pre-trained), none (from scratch), a path or a hub name")
    epochs: int = _setting(100, "passes over the training data", least=1)
    batch_size: int | str = _setting(16, "samples per update over all devices, before accumulation; auto: what fits", least=1)
    accumulate: int = _setting(1, "batches per update: effective batch = batch size × accumulate", least=1)
    lr0: float | None = _setting(None, "peak learning rate; default: depends on the architecture", least=1e-12)
    lrf: float = _setting(0.01, "final learning rate, as a fraction of lr0", least=0.0, most=1.0)
    scheduler: str = _setting("cosine", "learning rate schedule", choices=("cosine", "linear", "step", "constant"))
    optimizer: str = _setting("adamw", "optimizer", choices=("adamw", "sgd"))
    momentum: float = _setting(0.9, "momentum of SGD, first beta of AdamW", least=0.0, most=0.9999)
    weight_decay: float = _setting(0.0005, "weight decay; biases and normalisation layers have none", least=0.0)
    warmup_epochs: float = _setting(5.0, "epochs over which learning rate and momentum warm up", least=0.0)
    warmup_momentum: float = _setting(0.8, "momentum at the start of the warm-up", least=0.0, most=0.9999)
    max_grad_norm: float = _setting(10.0, "clip the gradient norm; 0 switches clipping off", least=0.0)
    patience: int = _setting(20, "stop after this many epochs without a better metric; 0: never", least=0)
    ema: float = _setting(0.9998, "decay of the averaged weights (EMA), which are evaluated; 0: none", least=0.0, most=0.999999)
    half: str = _setting("none", "mixed precision", choices=("none", "bf16", "fp16"))
    compile: str = _setting("none", "torch.compile mode", choices=("none", "default", "reduce-overhead", "max-autotune"))
    device: str = _setting("auto", "cpu, 0, 0,1 or auto; two or more start torchrun (cpu,cpu: two CPU ranks)")
    fsdp: bool = _setting(False, "shard weights and optimizer over the devices (FSDP2) instead of DDP")
    workers: int = _setting(4, "loader workers per device", least=0)
    cache: str = _setting("false", "keep resized images in memory or on disk", choices=("ram", "disk", "false"))
    seed: int = _setting(0, "seed of initialisation, order and augmentation", least=0)
    save_period: int = _setting(5, "keep one checkpoint per this many epochs; 0: only best and last", least=0)
    save_minutes: float = _setting(10.0, "minutes between checkpoints within an epoch; 0: only at its end", least=0.0)
    project: str = _setting("runs", "folder that holds the runs")
    name: str = _setting("", "name of the run; default: task and time")
    policy: str = _setting("heal", "what Holdfast may do", choices=("observe", "guard", "heal"))

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = _converted(field.name, getattr(self, field.name), hints[field.name])
            _check(field, value)
            object.__setattr__(self, field.name, value)

    @property
    def batch(self) -> int:
        """The batch size as a number, once `auto` has been decided."""
        if isinstance(self.batch_size, str):
            raise UsageError("the batch size is not decided yet.", fix="--batch-size 16")
        return self.batch_size

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The parts of the training, one after the other."""
        return (Stage(self.epochs, self.lr0, self.lrf),)

    def as_dict(self) -> dict[str, Any]:
        """Every setting by name."""
        return dataclasses.asdict(self)

    def with_changes(self: _SettingsT, **changes: Any) -> _SettingsT:
        """The same settings with some of them changed."""
        return dataclasses.replace(self, **changes)

    def write(self, path: Path) -> None:
        """Write all of them as YAML, after the name of the task."""
        path.write_text(yaml.safe_dump({"task": self.TASK, **self.as_dict()}, sort_keys=False), encoding="utf-8")


def _check_image_size(imgsz: int) -> None:
    if imgsz % 32:
        near = max(32, round(imgsz / 32) * 32)
        raise UsageError(f"image size {imgsz} is not a multiple of 32.", fix=f"--imgsz {near}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectSettings(TrainSettings):
    """Object detection. The augmentation's names and values are those that YOLO users know."""

    TASK: ClassVar[str] = "detect"
    MODEL: ClassVar[tuple[str, ...]] = ("architecture",)
    architecture: str = _setting("dfine-n", "dfine-n|s|m|l|x, rtdetr-r18|r34|r50|r101; yolov8n … where Ultralytics is installed")
    imgsz: int = _setting(640, "image size in pixels, a multiple of 32", least=32)
    dropout: float = _setting(0.1, "dropout in the transformer", least=0.0, most=0.9)
    augment: bool = _setting(True, "augment the training images")
    hsv_h: float = _setting(0.015, "change of hue, as a fraction", least=0.0, most=1.0)
    hsv_s: float = _setting(0.7, "change of saturation, as a fraction", least=0.0, most=1.0)
    hsv_v: float = _setting(0.4, "change of brightness, as a fraction", least=0.0, most=1.0)
    degrees: float = _setting(10.0, "rotation, in degrees", least=0.0, most=180.0)
    translate: float = _setting(0.1, "shift, as a fraction of the image", least=0.0, most=1.0)
    scale: float = _setting(0.5, "change of size, as a fraction", least=0.0, most=0.95)
    fliplr: float = _setting(0.5, "probability of a horizontal flip", least=0.0, most=1.0)
    mosaic: float = _setting(1.0, "probability of a mosaic of four images", least=0.0, most=1.0)
    close_mosaic: int = _setting(10, "number of last epochs without mosaic", least=0)

    def __post_init__(self) -> None:
        TrainSettings.__post_init__(self)
        _check_image_size(self.imgsz)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSettings(TrainSettings):
    """Segmentation in two stages. First the decoder learns on a frozen encoder, then all of the model."""

    TASK: ClassVar[str] = "segment"
    MODEL: ClassVar[tuple[str, ...]] = ("backbone", "num_experts")
    ALIASES: ClassVar[dict[str, str]] = {
        **TrainSettings.ALIASES,
        "img_size": "imgsz",
        "stage2_batch_size": "batch_size",  # both stages have one batch size, that of the one that needs more memory
    }
    data: str = _setting("", "data set: a folder with images/ and masks/; without a val split, a fifth is held out")
    lr0: float = _setting(1e-3, "peak learning rate of stage 1", least=1e-12)
    cache: str = _setting("false", "keep resized images and masks in memory", choices=("ram", "false"))
    backbone: str = _setting("edgenext_base", "encoder: any timm model with features_only")
    num_experts: int = _setting(4, "small convolutional experts per scale of the decoder, weighted by a gate", least=1, most=64)
    imgsz: int = _setting(352, "image size in pixels, a multiple of 32", least=32)
    stage1_epochs: int | None = _setting(None, "epochs with a frozen encoder, out of all epochs; default: a tenth", least=0)
    skip_stage1: bool = _setting(False, "train the whole model from the start")
    stage2_lr: float | None = _setting(None, "peak learning rate of stage 2; default: half of lr0", least=1e-12)
    min_lr: float | None = _setting(None, "final learning rate of stage 2; default: lrf times its peak", least=0.0)
    progressive_unfreeze: bool = _setting(False, "unfreeze the encoder layer by layer in stage 2, the last layer first")
    deep_supervision: bool = _setting(True, "a loss at every scale of the decoder, not only at the last")
    augment: bool = _setting(True, "augment the training images")
    hsv_h: float = _setting(0.015, "change of hue, as a fraction", least=0.0, most=1.0)
    hsv_s: float = _setting(0.4, "change of saturation, as a fraction", least=0.0, most=1.0)
    hsv_v: float = _setting(0.3, "change of brightness, as a fraction", least=0.0, most=1.0)
    degrees: float = _setting(15.0, "rotation, in degrees", least=0.0, most=180.0)
    translate: float = _setting(0.1, "shift, as a fraction of the image", least=0.0, most=1.0)
    scale: float = _setting(0.3, "change of size, as a fraction", least=0.0, most=0.95)
    fliplr: float = _setting(0.5, "probability of a horizontal flip", least=0.0, most=1.0)
    flipud: float = _setting(0.5, "probability of a vertical flip", least=0.0, most=1.0)

    def __post_init__(self) -> None:
        TrainSettings.__post_init__(self)
        _check_image_size(self.imgsz)
        if self.skip_stage1 or self.stage1_epochs is None:  # a number, so that a run that is resumed with more epochs keeps it
            object.__setattr__(self, "stage1_epochs", 0 if self.skip_stage1 else self.epochs // 10)
        if self.frozen_epochs > self.epochs:
            problem = f"stage 1 alone has {self.frozen_epochs} epochs, and the whole training {self.epochs}."
            raise UsageError(problem, fix=f"--stage1-epochs {self.epochs // 10}, or more --epochs")
        if self.fsdp:
            raise UsageError("segmentation is not sharded with FSDP.", fix="drop --fsdp: DDP is used")

    @property
    def frozen_epochs(self) -> int:
        """The epochs of stage 1."""
        return self.stage1_epochs or 0

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The decoder alone, where that is wanted, then everything."""
        peak = self.stage2_lr or self.lr0 / 2
        final = self.lrf if self.min_lr is None else min(1.0, self.min_lr / peak)
        both = Stage(self.frozen_epochs, self.lr0, self.lrf), Stage(self.epochs - self.frozen_epochs, peak, final)
        return tuple(stage for stage in both if stage.epochs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorsSettings(TrainSettings):
    """Sensor arrays. Masked auto-encoder, regression of several targets, or inpainting of dead channels."""

    TASK: ClassVar[str] = "sensors"
    MODEL: ClassVar[tuple[str, ...]] = ("objective", "width", "depth")
    STAGED: ClassVar[bool] = True
    VALIDATED: ClassVar[bool] = False  # a few chunks are checked: there may be terabytes
    ALIASES: ClassVar[dict[str, str]] = {
        **TrainSettings.ALIASES,
        "task": "objective",
        "grad_clip": "max_grad_norm",
        "grad_accum_steps": "accumulate",
    }
    objective: str = _setting("regress", "training task", choices=("mae", "regress", "inpaint"))
    data: str = _setting(
        "", "training events: a .root, .parquet or .npz file, a folder of them, or a pattern such as 'run*.root'"
    )
    val: str = _setting("", "validation events; default: the last tenth of each training file")
    tree: str = _setting("", "tree in ROOT files; default: the largest")
    array: Mapping[str, Any] = _setting({}, "the sensor array: channels and faces, in the --config file, a YAML file, or JSON")
    targets: Mapping[str, Any] = _setting({}, "regression targets by name; in the --config file, a YAML file, or JSON")
    weights: str = _setting("none", "run or checkpoint of `train sensors` to start from: its encoder, and the heads that fit")
    batch_size: int | str = _setting(256, "events per update over all devices, before accumulation; auto: what fits", least=1)
    lr0: float = _setting(1e-3, "peak learning rate", least=1e-12)
    max_grad_norm: float = _setting(1.0, "clip the gradient norm; 0 switches clipping off", least=0.0)
    ema: float = _setting(0.999, "decay of the averaged weights (EMA), which are evaluated; 0: none", least=0.0, most=0.999999)
    workers: int = _setting(-1, "loader workers per device: 1, 2, 4 or 8; -1: up to 4, on ARM 1", least=-1)
    num_threads: int = _setting(0, "decompression threads per worker; 0: 1, on ARM 4", least=0)
    chunksize: int = _setting(0, "events per chunk; 0: 16 MiB of them, on ARM 4 MiB", least=0)
    mask_ratio: float = _setting(0.6, "mae: fraction of the valid channels to hide", least=0.01, most=0.99)
    dead_fraction: float = _setting(0.05, "inpaint: fraction of the valid channels to hide in training", least=0.001, most=0.9)
    loss_fn: str = _setting("smooth_l1", "loss for targets without their own", choices=("smooth_l1", "l1", "mse"))
    loss_beta: float | None = _setting(
        None,
        "error at which smooth_l1 turns from quadratic to linear, in the target's units; default: a tenth of its spread",
        least=0.0,
    )
    width: int = _setting(64, "features per token, a multiple of 8", least=8)
    depth: int = _setting(4, "transformer layers", least=1)
    save_predictions: str = _setting("none", "stream predictions to files in this format", choices=("none", "parquet", "root"))
    save_interval: int = _setting(0, "epochs between saves of predictions; 0: only those of the best weights", least=0)

    def __post_init__(self) -> None:
        TrainSettings.__post_init__(self)
        machine = platform_defaults()
        for name, unset in (("workers", -1), ("num_threads", 0)):
            if getattr(self, name) == unset:
                object.__setattr__(self, name, machine[name])
        if self.width % 8:
            raise UsageError(f"width {self.width} is not a multiple of 8.", fix=f"--width {max(8, self.width // 8 * 8)}")
        if self.fsdp:
            raise UsageError("models of sensor arrays are not sharded with FSDP.", fix="drop --fsdp: DDP is used")


def platform_defaults() -> dict[str, int]:
    """Loader settings that suit this machine: on ARM one worker with more threads and small chunks."""
    if platform.machine().lower() in ("aarch64", "arm64"):
        return {"workers": 1, "num_threads": 4, "chunk_bytes": 4 << 20}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"workers": 4 if cores >= 4 else min(cores, 2), "num_threads": 1, "chunk_bytes": 16 << 20}


def add_flags(parser: argparse.ArgumentParser, kind: type[TrainSettings]) -> None:
    """Add a flag for every setting. None means that the flag was not used."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        names = [field.name, *(alias for alias, name in kind.ALIASES.items() if name == field.name)]
        flags, shown = ["--" + name.replace("_", "-") for name in names], field.default
        shown = None if shown is dataclasses.MISSING or shown == -1 else shown
        help = field.metadata["help"] + (f": {', '.join(field.metadata['choices'])}" if field.metadata["choices"] else "")
        help = help.replace("%", "%%") + (f" [default: {shown}]" if shown not in (None, "") else "")
        if hints[field.name] is bool:
            parser.add_argument(*flags, action=argparse.BooleanOptionalAction, default=None, help=help)
        elif field.name == "half":  # `--half` alone means bf16
            parser.add_argument(*flags, nargs="?", const="bf16", default=None, help=help)
        else:
            parser.add_argument(*flags, default=None, help=help, metavar=field.name.upper())


def read_settings(kind: type[_SettingsT], file: Path | None, flags: Mapping[str, Any]) -> _SettingsT:
    """Settings from a YAML file and flags; a flag wins. A key that does not exist names the nearest one."""
    values = read_yaml(file) if file is not None else {}
    values |= {name: value for name, value in flags.items() if value is not None}
    values = {name: value for name, value in values.items() if name != "task" or value not in (kind.TASK, None)}
    values = {kind.ALIASES.get(name, name): value for name, value in values.items()}
    names = [field.name for field in dataclasses.fields(kind)]
    for name in values:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            where = f" in {file}" if file is not None else ""
            raise UsageError(f"there is no setting {name!r}{where}.", fix=f"did you mean {near[0]}?" if near else _list(names))
    return kind(**values)


def _list(names: Sequence[str]) -> str:
    return f"use one of: {', '.join(names)}"


def read_yaml(file: Path) -> dict[str, Any]:
    """The values of a YAML file by name."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.", fix="name a YAML file") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{file} is not YAML: {' '.join(str(error).split())}.", fix="write one `key: value` per line") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{file} holds no settings.", fix="write one `key: value` per line")
    return {str(name).replace("-", "_"): value for name, value in values.items()}


def _converted(name: str, value: Any, hint: Any) -> Any:
    """A value as its setting's type: flags are text, and YAML has numbers, booleans and text."""
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
    if get_origin(hint) is Mapping:
        return _mapping(name, value)
    if value is None:
        if type(None) in get_args(hint):
            return None
        raise UsageError(f"{name} has no value.", fix=f"--{name.replace('_', '-')} VALUE")
    if isinstance(value, bool):
        return value if bool in kinds else str(value).lower()  # `cache: false`
    if kinds == [str]:
        return str(value)
    if value == "auto" and str in kinds:
        return value
    number = next(kind for kind in kinds if kind is not str)
    try:
        converted = number(value)
        if number is bool or converted != converted or (number is int and float(value) != converted):
            raise ValueError
    except (TypeError, ValueError):
        what = {int: "a whole number", float: "a number", bool: "true or false"}[number]
        raise UsageError(f"{name} = {value!r} is not {what}.", fix=f"--{name.replace('_', '-')} with {what}") from None
    return converted


def _mapping(name: str, value: Any) -> dict[str, Any]:
    """A setting with parts: from YAML, or as text from a flag, a file or JSON."""
    if isinstance(value, str):
        if not value.lstrip().startswith("{"):
            inner = read_yaml(Path(value))
            value = inner.get(name, inner)
        else:
            try:
                value = json.loads(value)
            except ValueError as error:
                raise UsageError(f"{name} is not JSON: {error}.", fix=f"--{name} FILE.yaml, or write it into --config") from None
    if value is not None and not isinstance(value, dict):
        raise UsageError(f"{name} = {value!r} has no parts.", fix=f"write `{name}:`, and its parts indented below it")
    return dict(value or {})


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    flag, meta = "--" + field.name.replace("_", "-"), field.metadata
    if meta["choices"] and value not in meta["choices"]:
        near = difflib.get_close_matches(str(value), meta["choices"], n=1)
        raise UsageError(
            f"{field.name} = {value!r} does not exist.", fix=f"{flag} {near[0] if near else ', '.join(meta['choices'])}"
        )
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if meta["least"] is not None and value < meta["least"]:
            raise UsageError(f"{field.name} = {value:g} is too small.", fix=f"{flag} {meta['least']:g} or more")
        if meta["most"] is not None and value > meta["most"]:
            raise UsageError(f"{field.name} = {value:g} is too large.", fix=f"{flag} {meta['most']:g} or less")
