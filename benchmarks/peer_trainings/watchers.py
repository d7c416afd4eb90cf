"""The peers: how each is started with its settings, and what its output says that it saw. Pure, but for the names of scripts."""

from __future__ import annotations

import re
from dataclasses import dataclass

FAULTS = (
    "nan-batch", "nan-gradient", "corrupted-weight", "lr-x100", "loss-spike", "label-out-of-range", "unshuffled",
    "frozen-parameters", "memory-leak", "deadlock", "process-killed", "checkpoint-truncated",
)  # fmt: skip
CAUSES = {  # what a watcher would have to say to name the cause; Holdfast is judged by the fault's own list
    "nan-batch": r"\binput|\bdata\b|\bbad batch",
    "nan-gradient": r"gradient.*(nan|finite)",
    "corrupted-weight": r"\bweights?\b|\bparameter",
    "lr-x100": r"learning[ -]rate|\blr\b",
    "loss-spike": r"\bbatch|\bsample|\boutlier|spike",
    "label-out-of-range": r"out of (bounds|range)",
    "unshuffled": r"shuffl",
    "frozen-parameters": r"frozen|requires_grad|not trained|no gradient",
    "memory-leak": r"\bleak|memory.*(grow|growth|rising|climb)",
    "deadlock": r"deadlock|\block\b",
    "process-killed": r"\bkilled\b|SIGKILL",
    "checkpoint-truncated": r"truncat|torn|corrupt|damaged",
}


@dataclass(frozen=True, slots=True)
class Watcher:
    """One column of the table. `base` is the watcher that its cost is compared with."""

    name: str
    script: tuple[str, ...]
    setting: str
    base: str = ""
    policy: str | None = None
    says: str = ""  # what in its output is said by it
    acts: str = ""  # what it does when it says so and the run goes on


_ERROR = r"^\w*Error: [^\n]+"  # of torch or of the script, for all to see
_ANOMALY = rf"RuntimeError: Function '\w+' returned nan[^\n]*|{_ERROR}"
_LOGGED = rf"'(?:loss|grad_norm|eval_loss)': '?(?:nan|inf)[^,}}]*|{_ERROR}"
WATCHERS = (
    Watcher("nothing", ("plain.py", "nothing"), "a plain loop", says=_ERROR),
    Watcher(
        "hand-written check",
        ("plain.py", "nan-check"),
        "`if not torch.isfinite(loss): continue`",
        "nothing",
        says=rf"^step \d+: the loss is not finite[^\n]*|{_ERROR}",
        acts="leaves it out",
    ),
    Watcher("autograd anomaly", ("plain.py", "anomaly"), "`torch.autograd.set_detect_anomaly(True)`", "nothing", says=_ANOMALY),
    Watcher(
        "runmedic",
        ("plain.py", "nothing"),
        "`runmedic diagnose` after the end, on a log of loss, gradient norm, rate, time and memory of every step",
        "nothing",
    ),
    Watcher("Lightning, bare", ("lightning_peer.py", "nothing"), "`Trainer()`", says=_ERROR),
    Watcher(
        "Lightning, anomaly", ("lightning_peer.py", "anomaly"), "`Trainer(detect_anomaly=True)`", "Lightning, bare", says=_ANOMALY
    ),
    Watcher(
        "Lightning, early stopping",
        ("lightning_peer.py", "early"),
        '`EarlyStopping("val_loss", check_finite=True, patience=3)`',
        "Lightning, bare",
        says=rf"Monitored metric[^\n]*|{_ERROR}",
    ),
    Watcher(
        "Lightning, spike",
        ("lightning_peer.py", "spike"),
        "`SpikeDetection(atol=1.0)`; with its defaults it ends the healthy run too",
        "Lightning, bare",
        says=rf"Training spike detected[^\n]*|{_ERROR}",
    ),
    Watcher("HF Trainer", ("hf_peer.py", "filtered"), "defaults: gradients clipped at 1, NaN kept out of its log", says=_LOGGED),
    Watcher("HF Trainer, NaN logged", ("hf_peer.py", "unfiltered"), "`logging_nan_inf_filter=False`", "HF Trainer", says=_LOGGED),
    Watcher("Holdfast observe", ("plain.py", "nothing"), "`holdfast run`", "nothing", policy="observe"),
    Watcher("Holdfast heal", ("plain.py", "nothing"), "`holdfast run --policy heal`", "nothing", policy="heal"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One watcher and one fault."""

    watcher: str
    fault: str
    happened: bool
    why_not: str = ""
    said: str = ""  # in its own words, or the finding
    cause: bool = False  # whether that names the cause
    did: str = ""
    metric: float | None = None
    ended_well: bool = False
    seconds: float = 0.0


def said_in(watcher: Watcher, output: str) -> str:
    """The first thing that the watcher says in what was printed."""
    found = re.search(watcher.says, output, re.MULTILINE) if watcher.says else None
    return " ".join(found.group(0).split())[:90] if found else ""


def names_cause(fault: str, said: str) -> bool:
    """Whether words name the cause of a fault."""
    return bool(said) and re.search(CAUSES[fault], said, re.IGNORECASE) is not None


def done(watcher: Watcher, *, hangs: bool, exit_code: int, complete: bool, said: str) -> str:
    """What became of the run."""
    if hangs:
        return "hangs for ever"
    if exit_code:
        return "dies"
    if not complete:
        return "stops early"
    return watcher.acts if said and watcher.acts else "goes on"
