"""`loss-divergence`: the loss went up, most of what was learned is lost, and it does not come back."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.levels import Usual, began, block_medians, coming_back, middle, usual_of_falling
from holdfast.signals.view import Floats, SignalView, Steps

_ZONE = 128  # steps that are looked at for the rise
_BEGINNING = 10
_LATE = 8  # steps after the onset: of a noisy loss, those right before a jump of the learning rate may have been high
_JUMP = 3.0  # times a learning rate at once; a warm-up climbs by more, in many steps
_PLAYING = 10.0  # times the highest level so far
_ABRUPT = 12  # steps after the onset that must be high already
_SLOW = ((0, 0.0), (12, 0.1), (44, 0.15), (108, 0.15))  # steps that a rise took, and how much more it must then have cost


def loss_divergence(
    signals: SignalView,
    *,
    sustained: int = 20,
    active_after: int = 64,
    lost: float = 0.8,
    lost_with_cause: float = 0.4,
    lost_after_restart: float = 0.9,
    times: float = 10.0,
    huge: float = 0.1,
    memory: int = 4096,
) -> Finding | None:
    """Compare the level of the last `sustained` losses with every level since the run first got as far as it was.

    All of these must hold: the level is `lost` of the way back to the beginning (or `times` the usual where nothing was learned
    yet, and then above all losses so far); it stands clear of every earlier level; the losses just before the rise were usual
    ones and those just after it were not; four of five losses since are up; and they are not coming down. A curriculum that
    makes the data harder costs half of what was learned in good health, so less than `lost` counts only together with a
    learning rate or gradients that left their history. A learning rate that goes up to a height it already had (a warm
    restart) raises the loss by itself.
    Settled on some fifty small trainings with a fault (LR x 10 and x 100, damaged weights, bad batches, wrong labels): those
    that stayed broken had lost 0.75 or more and were found within 50 steps. The healthy ones of `benchmarks` lost 0.6 at most.
    """
    _, loss = signals.last("loss", sustained + _ZONE + active_after)
    if len(loss) < sustained + active_after:
        return _from_the_start(signals, sustained, huge)
    level = middle(loss[-sustained:])
    for gap, more in _SLOW:
        before = loss[: -(sustained + gap)][-active_after:]
        if len(before) < active_after or level < (usual_then := middle(before)) + 0.25 * abs(usual_then):  # the common case
            continue
        share = lost_with_cause if gap <= 12 and _has_cause(signals, sustained + gap) else lost
        share = (lost_after_restart if _restarted(signals, sustained + gap) else share) + more
        divergence = _against(signals, memory, sustained, gap, active_after, share, times)
        if divergence is not None:
            return divergence
    return None


def _from_the_start(signals: SignalView, sustained: int, huge: float, times: float = 3.0) -> Finding | None:
    steps, loss = signals.last("loss", sustained + _ZONE)
    _, ratios = signals.last("update_ratio", _ZONE)
    sizes = ratios[np.isfinite(ratios)]
    if len(loss) <= sustained or not len(sizes) or middle(sizes) < huge or not np.isfinite(loss).all() or loss.min() <= 0.0:
        return None
    now = loss[-sustained:]
    needed = float(loss[0]) * times * float(np.exp(3.0 * np.std(np.log(now))))  # the first one may be of an easy batch
    if middle(now) < needed or np.mean(now > times * loss[0]) < 0.8 or coming_back(now, float(loss[0])):
        return None
    onset = int(steps[began(loss > times * loss[0])])
    evidence = {"onset": onset, "loss": middle(now), "normal": float(loss[0]), "initial_loss": float(loss[0]), "from_start": True}
    return Finding(
        "loss-divergence", step=int(steps[-1]), severity="critical", evidence=evidence | learning_rates(signals, onset)
    )


def _against(
    signals: SignalView, memory: int, sustained: int, gap: int, active_after: int, lost: float, times: float
) -> Finding | None:
    steps, loss = signals.last("loss", memory)
    if not np.isfinite(loss[-sustained:]).all():
        return None
    steps, loss = steps[np.isfinite(loss)], loss[np.isfinite(loss)]
    past, now = loss[: -(sustained + gap)], loss[-sustained:]
    if len(past) < active_after:
        return None
    normal, level = usual_of_falling(past[-active_after:]), middle(now)
    _, first = signals.first("loss", _BEGINNING)
    first = first[np.isfinite(first)]
    early = float(np.quantile(first, 0.75)) if len(first) else normal.value  # of small batches one in two may be learned already
    fall = early - normal.value
    learned = fall > max(3 * normal.noise, 0.1 * abs(normal.value))
    top = float(_since_learned(block_medians(past, sustained), normal, fall if learned else 0.0, early).max())
    if learned:
        needed = normal.value + max(lost * fall, 0.25 * abs(normal.value))
    else:
        ever = signals.highest("loss", before=int(steps[-(sustained + gap)]))
        needed = max(normal.value + times * max(abs(normal.value), 3 * normal.noise), ever)
    needed = max(needed, top + (top - normal.value), normal.value + 3 * normal.noise)
    if signals.plays:  # what it should predict grows as it plays better, and jumps with each copy of the target network
        needed = max(needed, normal.value + _PLAYING * max(abs(top), abs(normal.value)))
    bar = normal.value + 0.5 * (needed - normal.value)
    if level < needed or np.mean(now > bar) < 0.8 or middle(past[-sustained:]) > normal.value + 0.2 * (level - normal.value):
        return None
    onset = _onset(steps, loss, sustained + gap + sustained, normal, needed)
    since = loss[steps >= onset]
    if middle(since[:_ABRUPT]) < min(normal.value + 0.7 * (level - normal.value), early + 0.5 * fall):
        return None
    rates = learning_rates(signals, onset)
    onset = max(onset, int(rates.get("lr_jumped_at", 0)))
    too_high = "lr_jumped_at" in rates and rates["lr"] > 10 * rates["lr_before"]  # with that, it comes back to nothing good
    if not too_high and coming_back(since[-_ZONE // 2 :], normal.value) and middle(since[-_ABRUPT // 2 :]) < 2 * early:
        return None
    evidence = {
        "onset": onset,
        "loss": level,
        "normal": normal.value,
        "initial_loss": early,
        "highest_level_before": top,
        "steps_high": int(np.sum(steps >= onset)),
        **rates,
    }
    return Finding("loss-divergence", step=int(steps[-1]), severity="critical", evidence=evidence)


def _since_learned(levels: Floats, normal: Usual, fall: float, early: float) -> Floats:
    """The levels since the loss first came near where it was before the rise; all of them if it had risen before that."""
    reached = np.flatnonzero(levels <= normal.value + max(0.25 * fall, normal.noise))
    if not len(reached) or levels[: reached[0] + 1].max() > early + 0.3 * fall:
        return levels
    return levels[reached[0] :]


def _onset(steps: Steps, loss: Floats, rows: int, normal: Usual, needed: float) -> int:
    bar = normal.value + min(0.5 * (needed - normal.value), max(6 * normal.noise, 0.1 * (needed - normal.value)))
    return int(steps[-rows:][began(loss[-rows:] > bar)])


def _restarted(signals: SignalView, rows: int) -> bool:
    """Whether the learning rate went up within the last `rows` to a height that it had before."""
    steps, lr = signals.last("lr", 2 * _ZONE)
    before, after = lr[:-rows], lr[-rows:]
    if not len(before):
        return False
    had = signals.highest("lr", before=int(steps[-rows]))
    return bool(1.2 * before.min() < after.max() <= 1.05 * had)


def rate_restarted(signals: SignalView, since: int, *, rows: int = 4096) -> bool:
    """Whether the learning rate went up after step `since` to a height that it had before: a warm restart."""
    steps, lr = signals.last("lr", rows)
    before, after = lr[steps <= since], lr[steps > since]
    if not len(before) or not len(after):
        return False
    return bool(1.2 * before[-1] < after.max() <= 1.05 * signals.highest("lr", before=since))


def _has_cause(signals: SignalView, rows: int) -> bool:
    """Whether the learning rate or the gradients have left everything they ever had within the last `rows`."""
    for name, times in (("lr", 3.0), ("grad_norm", 2.0)):
        steps, values = signals.last(name, rows)
        if len(steps) and middle(values) > times * signals.highest(name, before=int(steps[0])) > 0:
            return True
    return False


def learning_rates(signals: SignalView, onset: int, *, since: int | None = None) -> dict[str, float | int]:
    """The learning rate now and before the trouble; where it jumped, if it did so by three or more at once, that before the jump.

    A warm-up climbs by more than that, in many steps; a warm restart only returns to a height that it had. A jump counts from
    step `since` to the onset, or shortly before and after that.
    """
    since = onset - _ZONE // 2 if since is None else since
    steps, lr = signals.last("lr", 4 * _ZONE)
    lr_steps = steps[np.isfinite(lr) & (lr > 0)]
    lr = lr[np.isfinite(lr) & (lr > 0)]
    evidence: dict[str, float | int] = {"lr": float(lr[-1])} if len(lr) else {}
    if len(past := lr[lr_steps < onset - _ZONE // 2]):
        evidence["lr_before"] = float(np.median(past[-_ZONE:]))
    at = [place for place in np.flatnonzero(lr[1:] > _JUMP * lr[:-1]) + 1 if since <= lr_steps[place] <= onset + _LATE][:1]
    if at and jumps(float(lr[at[0] - 1]), float(lr[at[0]]), signals.highest("lr", before=int(lr_steps[at[0]]))):
        evidence["lr_jumped_at"], evidence["lr_before"] = int(lr_steps[at[0]]), float(lr[at[0] - 1])
    return evidence


def jumps(before: float, rate: float, highest: float) -> bool:
    """Whether a learning rate left both the one before it and all that the run ever had."""
    return rate > _JUMP * before > 0 and rate > 1.05 * highest


def jumped_rate(signals: SignalView, onset: int, *, since: int | None = None) -> dict[str, float | int]:
    """The learning rates if they jumped, else nothing: a roll-back must know, whatever shows the trouble."""
    rates = learning_rates(signals, onset, since=since)
    return rates if "lr_jumped_at" in rates else {}
