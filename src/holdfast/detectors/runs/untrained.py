"""`parameters-not-trained`: parameters that no update has reached since the training began."""

from __future__ import annotations

from holdfast.detectors.finding import Finding
from holdfast.signals.run_view import RunView, Untrained


def parameters_not_trained(run: RunView, *, steps: int = 48, share: float = 0.1, few: float = 0.01) -> Finding | None:
    """Some parameters have not been trained for `steps` steps. Info, unless nobody can have meant it so.

    Nobody means: an optimizer that holds parameters which never get a gradient (`share` of all, a few may be unused), or
    parameters that no optimizer holds *behind* some that are trained (a layer that was replaced after the optimizer was
    made), or an optimizer that holds no parameter of the model at all any more. Layers that are frozen, or missing from the
    optimizer before the first one that is trained, are fine-tuning; `few` of them are constants of the model. A gradient that is
    exactly 0 in every sample is none. The last layer, with those that lead only there, is a head that the loss does not use. A
    module that takes no part in the forward pass is an option of the model that is off.
    """
    out = _zero_gradients(run, steps)
    out |= {name: one for name, one in run.untrained.items() if run.step - one.since >= steps and _is_certain(run, one)}
    if not out:
        return None
    out = {name: one for name, one in out.items() if one.why != "unused"} or out
    of = max(one.of for one in out.values())
    by_reason: dict[str, list[str]] = {}
    for name, one in out.items():
        by_reason.setdefault(one.why, []).append(name)
    behind = _behind_trained(out, of)
    cut_off = len(by_reason.get("no-gradient", ())) >= share * of
    if _is_unused_head(run, out, of):
        cut_off, by_reason = False, {"unused-head": list(out)}
    why = "no-optimizer" if behind else "no-gradient" if cut_off else max(by_reason, key=lambda reason: len(by_reason[reason]))
    if why == "frozen" and len(by_reason[why]) < few * of:
        return None
    names = behind if why == "no-optimizer" and behind else by_reason[why]
    evidence = {
        "onset": min(out[name].since for name in names),
        "why": why,
        "count": len(names),
        "of": of,
        "parameters": names[:5],
    }
    return Finding(
        "parameters-not-trained", step=run.step, severity="warning" if cut_off or behind else "info", evidence=evidence
    )


def _is_certain(run: RunView, one: Untrained, *, samples: int = 4) -> bool:
    """Whether it had no gradient in several samples: some steps may skip a layer, an expert be chosen seldom."""
    if one.why != "no-gradient" or not run.parameters:
        return True
    return len({step for seen in run.parameters.values() for step in seen.steps if step >= one.since}) >= samples


def _zero_gradients(run: RunView, steps: int, *, samples: int = 3) -> dict[str, Untrained]:
    """Parameters whose gradients were always 0, behind one that had others: where the first layers have none, they are dead."""
    out, others = {}, False
    for position, (name, seen) in enumerate(run.parameters.items()):
        if any(seen.grad_norm):
            others = True
        elif others and len(seen.steps) >= samples and seen.steps[-1] - seen.steps[0] >= steps:
            out[name] = Untrained("no-gradient", seen.steps[0], position, len(run.parameters))
    return out


def _is_unused_head(run: RunView, out: dict[str, Untrained], of: int) -> bool:
    """Whether the last layer is among these, the first is not, they are fewer than half and never had a gradient.

    Had the loss used the last layer, it would have one. The layers that lead only there have none either: the value network of a
    policy that is cloned.
    """
    never = all(
        one.why == "no-gradient" and not any(run.parameters[name].grad_norm if name in run.parameters else ())
        for name, one in out.items()
    )
    positions = {one.position for one in out.values()}
    return never and of - 1 in positions and 0 not in positions and 2 * len(out) < of


def _behind_trained(out: dict[str, Untrained], of: int) -> list[str]:
    """Those that no optimizer holds, though something before them in the model is trained; or all, if it holds none of them."""
    untrained = {one.position for one in out.values()}
    if sum(one.why == "no-optimizer" for one in out.values()) == of:
        return list(out)
    first_trained = next(position for position in range(len(untrained) + 1) if position not in untrained)
    return [name for name, one in out.items() if one.why == "no-optimizer" and one.position > first_trained]
