"""What it means that an operation gave NaN or Inf, and what to change: from its name and the numbers it was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_LIMITS = {"float16": "65,504", "bfloat16": "3.4e38", "float32": "3.4e38", "float64": "1.8e308"}
_FULL_PRECISION = "compute this part in float32: with torch.autocast(device_type=…, enabled=False), and .float() on its inputs"
_WHERE = (
    "torch.where does not stop a gradient: fix the argument of the dangerous function, not its result "
    "(torch.where(ok, x, 1.0).log())"
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """A cause by its code, in words, with what could be changed."""

    cause: str
    text: str
    fixes: tuple[str, ...]


def meaning_of(answer: Mapping[str, Any]) -> Meaning | None:
    """The meaning of what a replay has found; None if it has found nothing."""
    if not answer.get("found"):
        return None
    if answer.get("kind") == "input":
        return Meaning(
            "data-non-finite",
            f"The batch itself is not finite: {answer.get('detail') or answer.get('input')}.",
            ("look at these samples in the data set, and at what loads and transforms them", "skip or repair them"),
        )
    if answer.get("kind") == "weights":
        return Meaning(
            "weights-non-finite",
            f"The saved weights were already not finite: {answer.get('detail')}.",
            ("an earlier update corrupted them: replay the first bad step, or resume from a checkpoint before it",),
        )
    if answer.get("kind") != "operation":
        return Meaning(
            "unknown",
            "The values were already not finite when they reached torch: they came from outside, not from an operation.",
            ("look at what this line reads",),
        )
    name = str(answer.get("operation", "")).rpartition("::")[2].strip("_")
    if answer.get("stage") == "backward":
        node = str(answer.get("node", "")).rstrip("0123456789").removesuffix("Backward").lower()
        return next((meaning for names, meaning in _BACKWARD if node in names), None) or _by_numbers(answer, name)
    explain = next((explain for names, explain in _FORWARD if name in names), None)
    return (explain(answer) if explain is not None else None) or _by_numbers(answer, name)


def _tensor(answer: Mapping[str, Any], place: int = 0) -> dict[str, Any]:
    tensors = [operand for operand in answer.get("operands", ()) if "shape" in operand]
    return dict(tensors[place]) if place < len(tensors) else {}


def _count(operand: Mapping[str, Any]) -> int:
    total = 1
    for length in operand.get("shape", ()):
        total *= int(length)
    return total


def _of(operand: Mapping[str, Any], key: str, phrase: str) -> str:
    count = int(operand.get(key, 0))
    return f"{count:,} of {_count(operand):,} values {'is' if count == 1 else 'are'} {phrase}"


def _logarithm(answer: Mapping[str, Any]) -> Meaning:
    operand = _tensor(answer)
    fixes = (
        "keep the argument away from zero: torch.log(x.clamp_min(1e-8)), or torch.log(x + 1e-8)",
        "better, stay with logits: log_softmax, cross_entropy, binary_cross_entropy_with_logits",
    )
    if operand.get("negative"):
        return Meaning(
            "log-of-negative", f"The logarithm of a negative number is NaN: {_of(operand, 'negative', 'negative')}.", fixes
        )
    return Meaning("log-of-zero", f"The logarithm of zero is minus infinity: {_of(operand, 'zeros', '0')}.", fixes)


def _division(answer: Mapping[str, Any]) -> Meaning | None:
    divisor = _tensor(answer, 1) or (_tensor(answer) if "reciprocal" in str(answer.get("operation")) else {})
    scalars = [operand["value"] for operand in answer.get("operands", ()) if "value" in operand]
    fixes = (
        "add a small number to the divisor, x / (y + 1e-8), or y.clamp_min(1e-8)",
        "if a mean over a mask may be empty: mask.sum().clamp_min(1)",
    )
    if divisor.get("zeros"):
        return Meaning("division-by-zero", f"Division by zero: {_of(divisor, 'zeros', '0')} in the divisor.", fixes)
    if scalars and not divisor and not scalars[0]:
        return Meaning("division-by-zero", "Division by zero.", fixes)
    return _overflow(answer)


def _root(answer: Mapping[str, Any]) -> Meaning | None:
    operand = _tensor(answer)
    if operand.get("negative"):
        text = f"The square root of a negative number is NaN: {_of(operand, 'negative', 'negative')}."
        return Meaning("root-of-negative", text, ("keep the argument above zero: x.clamp_min(0)",))
    if operand.get("zeros"):
        text = f"One over the square root of zero is infinite: {_of(operand, 'zeros', '0')}."
        return Meaning("division-by-zero", text, ("add a small number inside the root: torch.rsqrt(x + 1e-8)",))
    return None


def _exponential(answer: Mapping[str, Any]) -> Meaning:
    operand = _tensor(answer)
    largest, kind = operand.get("max"), str(operand.get("dtype", "float32"))
    edge = {"float16": "11.1", "float64": "709.8"}.get(kind, "88.7")
    text = f"The exponential overflows: its largest argument is {_short(largest)}; in {kind}, exp(x) is infinite beyond {edge}."
    return Meaning(
        "overflow",
        text,
        (
            "use the function that is written for it: softmax, logsumexp, log_softmax, softplus",
            "or bound the argument: torch.exp(x.clamp(max=20))",
            "arguments that grow from step to step: lower the learning rate, clip gradients",
        ),
    )


def _power(answer: Mapping[str, Any]) -> Meaning | None:
    base = _tensor(answer)
    exponent = next((operand["value"] for operand in answer.get("operands", ()) if "value" in operand), None)
    if base.get("negative") and isinstance(exponent, float) and not exponent.is_integer():
        text = f"A negative number has no power {exponent}: {_of(base, 'negative', 'negative')}."
        return Meaning("root-of-negative", text, ("keep the base above zero: x.clamp_min(0)",))
    if base.get("zeros") and isinstance(exponent, (int, float)) and exponent < 0:
        text = f"Zero to the power {exponent} is infinite: {_of(base, 'zeros', '0')}."
        return Meaning("division-by-zero", text, ("add a small number to the base: (x + 1e-8) ** p",))
    return None


def _softmax(answer: Mapping[str, Any]) -> Meaning | None:
    operand = _tensor(answer)
    if not operand.get("minus_inf"):
        return None
    return Meaning(
        "fully-masked-row",
        f"A softmax over a row of only -inf is NaN: the row is fully masked ({_of(operand, 'minus_inf', '-inf')}).",
        (
            "leave at least one element of every row unmasked, or exclude such rows from the loss",
            "mask with a large finite number: scores.masked_fill(mask, torch.finfo(scores.dtype).min)",
        ),
    )


def _spread(answer: Mapping[str, Any]) -> Meaning | None:
    operand = _tensor(answer)
    if 1 in operand.get("shape", ()) or 0 in operand.get("shape", ()):
        text = f"The standard deviation of a single value is 0 / 0 (shape {operand['shape']})."
        return Meaning("too-few-values", text, ("use unbiased=False (correction=0), or at least two values",))
    return None


def _average(answer: Mapping[str, Any]) -> Meaning | None:
    if _count(_tensor(answer)) == 0:
        return Meaning(
            "too-few-values",
            "The mean of no values is 0 / 0: a mask or an index selected nothing.",
            ("sum and divide by the count, at least 1: x.sum() / max(x.numel(), 1)", "leave such a batch out"),
        )
    return None


_STEEP_ROOT = Meaning(
    "division-by-zero",
    "The square root has an infinite slope at zero: its value is fine there, its gradient is not.",
    ("add a small number inside the root: torch.sqrt(x + 1e-8)", _WHERE),
)
_STEEP_LOGARITHM = Meaning(
    "log-of-zero",
    "The gradient of the logarithm, 1 / x, is not finite at zero, even where the value itself was not used.",
    ("keep the argument away from zero: torch.log(x.clamp_min(1e-8))", _WHERE),
)
_STEEP_DIVISION = Meaning(
    "division-by-zero",
    "The gradient of a division divides by the divisor once more: at or near zero it is not finite.",
    ("add a small number to the divisor: x / (y + 1e-8)", _WHERE),
)
_STEEP_POWER = Meaning(
    "division-by-zero",
    "The gradient of a power below 1 is infinite at zero: its value is fine there, its gradient is not.",
    ("add a small number to the base: (x + 1e-8) ** p", _WHERE),
)
_EDGE = Meaning(
    "out-of-domain",
    "The function is not defined, or infinitely steep, at and beyond the edge of its domain.",
    ("keep the argument inside, for example x.clamp(-1 + 1e-6, 1 - 1e-6)",),
)


def _overflow(answer: Mapping[str, Any]) -> Meaning:
    output = answer.get("output") or {}
    kind = str(output.get("dtype", "float32"))
    largest = max((abs(operand.get(key) or 0.0) for operand in answer.get("operands", ()) for key in ("min", "max")), default=0.0)
    text = f"The result exceeds the range of {kind} ({_LIMITS.get(kind, 'its limit')}); largest operand {_short(largest)}."
    fixes = ["lower the learning rate, clip gradients: values this large have grown over steps"]
    if kind == "float16":
        fixes = [_FULL_PRECISION, "use bfloat16, which has the range of float32", *fixes]
    return Meaning("overflow", text, tuple(fixes))


def _by_numbers(answer: Mapping[str, Any], name: str) -> Meaning:
    output = answer.get("output") or {}
    if (output.get("inf") or output.get("minus_inf")) and name not in ("inverse", "linalg_inv_ex", "linalg_solve_ex"):
        return _overflow(answer)
    text = f"{name} gave NaN on finite operands: they are outside its domain, or a sum inside it overflowed."
    return Meaning("unknown", text, ("compare the values above with the domain of the function", _FULL_PRECISION))


def _short(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


_Explain = Callable[[Mapping[str, Any]], Meaning | None]
_FORWARD: list[tuple[tuple[str, ...], _Explain]] = [
    (("log", "log2", "log10", "xlogy", "special_xlogy"), _logarithm),
    (("div", "true_divide", "reciprocal", "remainder", "fmod"), _division),
    (("sqrt", "rsqrt"), _root),
    (("exp", "exp2", "expm1", "cosh", "sinh"), _exponential),
    (("pow", "float_power"), _power),
    (("softmax", "log_softmax", "safe_softmax"), _softmax),
    (("var", "std", "var_mean", "std_mean"), _spread),
    (("mean", "nll_loss_forward"), _average),
    (("acos", "asin", "atanh", "logit", "erfinv", "log1p"), lambda _: _EDGE),
]
_BACKWARD: list[tuple[tuple[str, ...], Meaning]] = [
    (("sqrt", "rsqrt"), _STEEP_ROOT),
    (("log", "log2", "log10", "xlogy"), _STEEP_LOGARITHM),
    (("div", "reciprocal"), _STEEP_DIVISION),
    (("pow",), _STEEP_POWER),
    (("acos", "asin", "atanh", "logit"), _EDGE),
]
