"""Which packages are installed in which versions, by their metadata alone: nothing is imported, so nothing can fail."""

from __future__ import annotations

import importlib.metadata as metadata
import re
from collections import defaultdict
from dataclasses import dataclass

TRAINING = (
    "torch", "torchvision", "torchaudio", "triton", "numpy", "lightning", "pytorch-lightning", "torchmetrics", "transformers",
    "tokenizers", "huggingface-hub", "accelerate", "safetensors", "datasets", "peft", "timm", "ultralytics", "bitsandbytes",
    "flash-attn", "xformers", "deepspeed", "mlflow", "wandb", "tensorboard", "nvidia-ml-py",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Package:
    """One installed package. `also` has the other versions, if its metadata is there more than once.

    `requires` is read for the packages that trainings are made of.
    """

    name: str
    version: str
    requires: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def release(self) -> tuple[int, ...]:
        """The numbers of the version: 2.13.0+cpu is (2, 13, 0)."""
        return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+a-z]", self.version, maxsplit=1)[0]))

    @property
    def build(self) -> str:
        """What stands behind the plus: cpu, cu126."""
        return self.version.partition("+")[2]


def installed(folders: list[str] | None = None) -> dict[str, Package]:
    """All packages by their name in small letters with hyphens; the first on the path counts. `folders`: not `sys.path`."""
    versions: dict[str, list[str]] = defaultdict(list)
    requires: dict[str, tuple[str, ...]] = {}
    for package in metadata.distributions(path=folders) if folders is not None else metadata.distributions():
        header = package.metadata  # parsed anew at each access
        if header is None or not header["Name"]:
            continue
        name = plain(header["Name"])
        versions[name].append(str(header["Version"]))
        if name in TRAINING and name not in requires:
            requires[name] = tuple(package.requires or ())
    return {
        name: Package(name, first, requires.get(name, ()), tuple(dict.fromkeys(other for other in others if other != first)))
        for name, (first, *others) in versions.items()
    }


def plain(name: str) -> str:
    """A package's name as it is compared: small letters, hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def of_training(packages: dict[str, Package]) -> dict[str, str]:
    """Versions of the packages that trainings are made of."""
    return {name: packages[name].version for name in TRAINING if name in packages}
