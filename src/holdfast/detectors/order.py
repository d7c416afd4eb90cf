"""All detectors, and how often each is asked. A detector that is not cheap, or that looks far back, is asked less often."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from holdfast.detectors.clipping import clipping_every_step, clipping_never
from holdfast.detectors.finding import Finding
from holdfast.detectors.gradient_explosion import gradient_explosion
from holdfast.detectors.loss_divergence import loss_divergence
from holdfast.detectors.loss_spike import loss_spike
from holdfast.detectors.lr_jump import lr_jump
from holdfast.detectors.metric_collapse import metric_collapse
from holdfast.detectors.metric_decline import metric_decline
from holdfast.detectors.non_finite_weights import non_finite_weights
from holdfast.detectors.scaler import scaler_collapse
from holdfast.detectors.weights_jump import weights_jump
from holdfast.signals.view import SignalView

Detector = Callable[[SignalView], "Finding | None"]


class StepDetector(NamedTuple):
    """A detector that looks at steps, and after how many rows it is asked again."""

    detector: Detector
    every: int


OF_STEPS = (
    StepDetector(non_finite_weights, 4),
    StepDetector(loss_divergence, 4),
    StepDetector(weights_jump, 4),
    StepDetector(lr_jump, 8),
    StepDetector(gradient_explosion, 4),
    StepDetector(loss_spike, 4),
    StepDetector(scaler_collapse, 32),
    StepDetector(clipping_every_step, 256),
    StepDetector(clipping_never, 2048),
)
OF_EVALUATIONS: tuple[Detector, ...] = (metric_collapse, metric_decline)
EVERY = min(asked.every for asked in OF_STEPS)
