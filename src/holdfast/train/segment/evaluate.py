"""Evaluates predictions image by image, and keeps those that the report shows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from holdfast.train.segment.metrics import Scores, scores

SHOWN = 6  # best and worst images of the report


@dataclass(frozen=True, slots=True)
class Judged:
    """The prediction for one image (S×S, 0 to 255), and its scores."""

    index: int
    prediction: npt.NDArray[np.uint8]
    scores: Scores


class Evaluator:
    """Scores of all images, and the predictions of the best and worst ones."""

    def __init__(self) -> None:
        self.scores: dict[int, Scores] = {}
        self.kept: list[Judged] = []

    def add(self, indices: torch.Tensor, predictions: torch.Tensor, masks: torch.Tensor) -> None:
        """Score a batch of foreground probabilities B×S×S."""
        predictions = predictions.nan_to_num()  # of a training that diverged: nothing was found
        for index, prediction, mask in zip(indices.tolist(), predictions.cpu().numpy(), masks.cpu().numpy(), strict=True):
            self.scores[index] = judged = scores(prediction, mask)
            self.kept.append(Judged(index, np.round(prediction * 255).astype(np.uint8), judged))
        self._keep_some()

    def _keep_some(self) -> None:
        """The best and the worst, by IoU; the worst first."""
        ordered = sorted(self.kept, key=lambda judged: (judged.scores.iou, judged.index))
        self.kept = ordered if len(ordered) <= 2 * SHOWN else [*ordered[:SHOWN], *ordered[-SHOWN:]]

    @classmethod
    def merged(cls, parts: Iterable[Evaluator]) -> Evaluator:
        """That of all ranks together."""
        whole = cls()
        for part in parts:
            whole.scores |= part.scores
            whole.kept += part.kept
        whole._keep_some()
        return whole

    def metrics(self) -> dict[str, float]:
        """The mean of every metric; in the order of the images, so that any number of ranks gives the same."""
        rows = [self.scores[index] for index in sorted(self.scores)]
        return {name: math.fsum(column) / len(rows) for name, column in zip(Scores._fields, zip(*rows, strict=True), strict=True)}
