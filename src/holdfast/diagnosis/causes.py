"""What findings may come from, and what helps: knowledge as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Fix:
    """One thing to do: words, and where a setting exists, how to change it."""

    words: str
    setting: str | None = field(default=None, kw_only=True)
    op: str | None = field(default=None, kw_only=True)
    value: Any = field(default=None, kw_only=True)

    def as_row(self) -> dict[str, Any]:
        """The fix as a report holds it."""
        change = {"setting": self.setting, "op": self.op, "value": self.value} if self.setting else {}
        return {"words": self.words, **change}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why something happened: which findings speak for it, which evidence makes it likely or rules it out.

    `signs` are names that `diagnosis.signs` derives from the evidence; each one that is present makes the cause more likely.
    """

    code: str
    seen_by: tuple[str, ...]
    because: str
    signs: tuple[str, ...] = ()
    ruled_out_by: tuple[str, ...] = ()
    likely: float = 0.3
    fixes: tuple[Fix, ...] = ()


_LOWER = Fix("lower the learning rate", setting="lr", op="multiply", value=0.25)

SETTING_CHANGED = Cause(
    code="setting-changed",
    seen_by=("loss-divergence", "gradient-explosion", "metric-decline", "metric-collapse"),
    signs=("lr-jumped", "change-before"),
    because="A setting changed shortly before it began.",
    likely=0.0,
    fixes=(Fix("go back to the setting as it was, or change it in smaller steps"),),
)
LEARNING_RATE_TOO_HIGH = Cause(
    code="learning-rate-too-high",
    seen_by=("loss-divergence", "gradient-explosion", "metric-collapse", "metric-decline", "loss-spike"),
    signs=("lr-jumped", "norm-exploded"),
    ruled_out_by=("input-non-finite",),
    because="The loss rose and stayed up while the inputs were finite.",
    likely=0.5,
    fixes=(_LOWER, Fix("warm the learning rate up over the first epochs", setting="warmup_epochs", op="set", value=5)),
)
NO_CLIPPING = Cause(
    code="no-clipping",
    seen_by=("gradient-explosion", "loss-divergence"),
    signs=("norm-exploded", "not-clipped"),
    because="Gradients grew far beyond their usual size and nothing held them.",
    likely=0.1,
    fixes=(Fix("clip gradients at 2 to 5 times their usual norm", setting="clip_norm", op="set", value=None),),
)
BAD_BATCH = Cause(
    code="bad-batch",
    seen_by=("loss-spike", "non-finite-loss", "non-finite-gradient"),
    signs=("recovered",),
    because="One step stood out and the next ones were as usual.",
    likely=0.4,
    fixes=(Fix("look at the batch of that step"),),
)
DATA_NON_FINITE = Cause(
    code="data-non-finite",
    seen_by=("non-finite-weights", "non-finite-loss", "non-finite-gradient"),
    signs=("input-non-finite",),
    because="The input already held NaN or Inf.",
    likely=0.0,
    fixes=(Fix("check the data: holdfast validate"),),
)
OVERFLOW = Cause(
    code="overflow",
    seen_by=("scaler-collapse", "non-finite-weights", "non-finite-gradient"),
    signs=("scaler",),
    because="Numbers grew beyond what half precision holds.",
    likely=0.3,
    fixes=(Fix("train in bfloat16, which needs no scaler", setting="dtype", op="set", value="bfloat16"),),
)
WEIGHTS_DAMAGED = Cause(
    code="weights-damaged",
    seen_by=("non-finite-weights",),
    ruled_out_by=("input-non-finite",),
    because="No step gives finite numbers any more, whatever the batch.",
    likely=0.6,
    fixes=(Fix("go back to the last clean state"),),
)
MEMORY_SHORT = Cause(
    code="micro-batch-too-large",
    seen_by=("gpu-out-of-memory",),
    because="The step did not fit into the GPU's memory.",
    likely=0.6,
    fixes=(Fix("halve the micro-batch and double the accumulation"),),
)

CAUSES = (
    SETTING_CHANGED,
    DATA_NON_FINITE,
    WEIGHTS_DAMAGED,
    LEARNING_RATE_TOO_HIGH,
    NO_CLIPPING,
    BAD_BATCH,
    OVERFLOW,
    MEMORY_SHORT,
)
BY_CODE = {cause.code: cause for cause in CAUSES}
