"""`holdfast export`: a trained model as an ONNX file for any batch size, checked against the model's own output."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.errors import DoesNotMatch, UsageError
from holdfast.train.extras import required

_BATCHES = (1, 3)  # the file is checked with each; it is made with another one
Outputs = Sequence[torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Exportable:
    """A trained model, on the CPU, as a function of one tensor: images B×3×S×S with values from 0 to 1, or others of `shape`."""

    model: nn.Module
    imgsz: int = 0
    name: str = "images"  # of the input
    shape: tuple[int, ...] = ()  # of one sample; without it, an image
    outputs: tuple[str, ...]  # their names
    described: str  # what the outputs are
    metadata: dict[str, str]  # in the file
    images: torch.Tensor | None = None  # with which the file is checked; without them, noise
    difference: Callable[[Outputs, Outputs], torch.Tensor]  # between the model's outputs and those of the file

    @property
    def sample(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.shape or (3, self.imgsz, self.imgsz)

    @property
    def inputs(self) -> str:
        """The input in words."""
        return f"{self.name} B×{'×'.join(map(str, self.sample))}"

    def noise(self, batch: int) -> torch.Tensor:
        """Samples with values from 0 to 1."""
        return torch.rand(batch, *self.sample, generator=torch.Generator().manual_seed(batch))


def export_onnx(made: Exportable, path: Path, *, tolerance: float = 1e-3) -> float:
    """Write a model as ONNX; the largest difference between its outputs and those of onnxruntime.

    The file gets its name once it has been checked: a difference above `tolerance` is an error, and no file is left.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        required(package, extra="export")
    made.model.eval()
    shown = made.images if made.images is not None else made.noise(max(_BATCHES))
    unchecked = path.with_name(f".{path.name}.unchecked")
    try:
        with _quiet(), torch.no_grad():
            program = _converted(made)
            program.model.metadata_props.update({**made.metadata, **({"imgsz": str(made.imgsz)} if made.imgsz else {})})
            program.save(unchecked)
        difference = torch.stack([_difference(made, unchecked, shown[:batch]) for batch in _BATCHES]).max().item()
        if not difference <= tolerance:  # NaN is an error as well
            raise DoesNotMatch(
                f"the exported model differs from the trained one by {difference:.2g} (allowed: {tolerance:g}).",
                fix=f"holdfast export --tolerance {2 * difference:.1g}, if such a difference does no harm",
            )
        unchecked.replace(path)
    finally:
        unchecked.unlink(missing_ok=True)
    return difference


def _converted(made: Exportable) -> Any:
    """Strict tracing keeps the batch variable where a model asks for `len(tensor)`. A batch of 1 would become a constant."""
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    try:
        program = torch.export.export(made.model, (made.noise(2),), dynamic_shapes=shapes, strict=True)
        return torch.onnx.export(
            program, dynamo=True, input_names=[made.name], output_names=made.outputs, verbose=False, external_data=False
        )
    except RuntimeError as error:  # all errors of the exporter are
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"the model cannot be exported: {reason}", fix="pip install --upgrade onnxscript torch") from error


def _difference(made: Exportable, path: Path, images: torch.Tensor) -> torch.Tensor:
    runtime = required("onnxruntime", extra="export")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        outputs = made.model(images)
    return made.difference(outputs, [torch.from_numpy(array) for array in session.run(None, {made.name: images.numpy()})])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of the exporter, and without checks in `transformers` that have no counterpart in ONNX."""
    name = "TRANSFORMERS_DISABLE_TORCH_CHECK"
    before, level = os.environ.get(name), logging.root.manager.disable
    os.environ[name] = "1"
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        if before is None:
            del os.environ[name]
