"""Puts one fault into a training at one step: FAULT names it, FAULT_STEP says when. Nothing here knows of Holdfast.

A fault happens once: the script's own count of steps goes on when its state is put back, so it does not meet the same
fault again. Only `lr-x100-kept` goes on to the end.
"""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.nn import functional


def begin() -> None:
    """One thread, and the seed that SEED names: two runs of a training compute the same."""
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ.get("SEED", "0")))


class Fault:
    """What goes wrong in this training, if anything."""

    def __init__(self) -> None:
        self.kind = os.environ.get("FAULT", "none")
        self.step = int(os.environ.get("FAULT_STEP", "500"))
        self._usual_rate = 0.0

    def inputs(self, step: int, inputs: torch.Tensor) -> torch.Tensor:
        """The batch, with what a broken file, a broken augmentation or an odd sample makes of it."""
        if self._is("nan-batch", step):
            return torch.full_like(inputs, torch.nan)
        if self._is("inf-pixel", step):
            inputs = inputs.clone()
            inputs.view(-1)[17] = torch.inf
        if self._is("spike-that-recovers", step):
            return 5 * inputs
        if self._is("fp16-overflow", step):
            return 1e6 * inputs  # a sample that was not normalised: harmless in single precision, too large for half
        return inputs

    def labels(self, step: int, labels: torch.Tensor, classes: int) -> torch.Tensor:
        """The labels, one of them one beyond the last class."""
        if not self._is("label-out-of-range", step):
            return labels
        return torch.cat([torch.full_like(labels[:1], classes), labels[1:]])

    def state(self, step: int, optimizer: torch.optim.Optimizer, weight: torch.Tensor, size: float) -> None:
        """Change the learning rate, or a weight: one of its values becomes `size`, or all are multiplied by 3."""
        if self._is("lr-x100", step):
            for group in optimizer.param_groups:
                group["lr"] *= 100
        if self._is("lr-x100-kept", step):
            self._usual_rate = optimizer.param_groups[0]["lr"]
        if self._usual_rate:  # as a schedule does that says so at every step, whatever state the optimizer was put into
            for group in optimizer.param_groups:
                group["lr"] = 100 * self._usual_rate
        with torch.no_grad():
            if self._is("corrupted-weight", step):
                weight.view(-1)[weight.abs().argmax()] = size
            if self._is("exploding-rnn", step):
                weight.mul_(3)

    def scale(self, step: int, scale: float) -> float:
        """A hand-made loss scale that was grown once too often."""
        return 64 * scale if self._is("fp16-overflow", step) else scale

    def _is(self, kind: str, step: int) -> bool:
        return self.kind == kind and step == self.step


def negative_log_likelihood(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy by hand: a label that does not exist has probability 0, and makes the loss Inf."""
    probabilities = functional.pad(logits, (0, 1), value=-torch.inf).softmax(-1)
    return -probabilities.gather(-1, labels[..., None]).log().mean()


def accuracy(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of held-out samples that the model gets right; of what is not a number, none."""
    model.eval()
    with torch.no_grad():
        logits = model(inputs)
        functional.cross_entropy(logits, labels)
    model.train()
    return float(((logits.argmax(1) == labels) & logits.isfinite().all(1)).float().mean())
