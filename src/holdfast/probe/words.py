"""The texts of the journal: what each finding and each action is called in plain words. One table for all who show them."""

from __future__ import annotations

from typing import NamedTuple

FINDINGS = {
    "non-finite-loss": "non-finite loss",
    "non-finite-gradient": "non-finite gradient",
    "non-finite-weights": "non-finite weights",
    "non-finite-input": "non-finite input",
    "loss-spike": "loss spike",
    "loss-divergence": "the loss rose and stays high",
    "gradient-explosion": "the gradients explode",
    "gradient-vanishing": "the gradients vanish",
    "dead-units": "dead units",
    "saturated-units": "saturated units",
    "clipping-every-step": "clipping at every step",
    "clipping-never": "clipping is never active",
    "scaler-collapse": "the gradient scaler collapsed",
    "loss-plateau": "the loss no longer falls",
    "loss-oscillation": "the loss oscillates",
    "not-learning": "the model does not learn",
    "constant-predictions": "all predictions are the same",
    "overfitting": "overfitting",
    "underfitting": "underfitting",
    "metric-decline": "the metric gets worse",
    "metric-collapse": "the metric collapsed",
    "gradients-not-zeroed": "gradients are never zeroed",
    "parameters-not-trained": "some parameters are not trained",
    "unshuffled-data": "the data is not shuffled",
    "split-leak": "the same samples in two splits",
    "too-good": "too good to be true",
    "preprocessing-mismatch": "preprocessing differs between splits",
    "token-out-of-range": "a token or label is out of range",
    "class-imbalance": "classes are imbalanced",
    "hang": "the training hangs",
    "loader-stall": "the loader delivers no batches",
    "collective-stall": "ranks wait for each other",
    "rank-divergence": "the ranks have different weights",
    "replica-left": "a torchft replica left or joined",
    "ranks-differ": "one rank is set up differently",
    "straggler": "one rank is slower than the others",
    "slow-loading": "slow data loading",
    "slow-step": "the steps got slower",
    "low-gpu-utilisation": "low GPU utilisation",
    "recompilation": "repeated recompilation",
    "gpu-memory-growth": "GPU memory grows",
    "host-memory-growth": "host memory grows",
    "gpu-out-of-memory": "out of GPU memory",
    "host-out-of-memory": "out of host memory",
    "computing-on-cpu": "training on the CPU although a GPU is present",
    "checkpoint-torn": "a checkpoint is incomplete",
    "checkpoint-non-finite": "a checkpoint holds NaN or Inf",
    "checkpoint-incompatible": "the checkpoint cannot be loaded",
    "checkpoint-not-saved": "a checkpoint could not be saved",
    "resume-mismatch": "the resume does not match the earlier run",
    "tracker-unreachable": "a server cannot be reached",
    "disk-full": "the disk is full",
    "process-died": "the process ended early",
    "script-error": "the script failed",
    "holdfast-degraded": "Holdfast could not do everything",
}


class ActionWords(NamedTuple):
    """An action when it was done and when it is still to be done. `{name}` is a setting; `more` says those that may be absent."""

    done: str
    to_do: str
    more: dict[str, str]


ACTIONS = {
    "skip-batch": ActionWords("update skipped", "skip the update", {}),
    "clip": ActionWords("gradients clipped", "clip the gradients", {"max_norm": " at {}", "steps": " for {} steps"}),
    "roll-back": ActionWords(
        "rolled back",
        "roll back",
        {
            "to": " to step {}",
            "before": "",
            "lr_factor": ", learning rate x {}",
            "regain_steps": " for {} steps",
            "lr_limit": ", learning rate kept under {}",
            "warmup_steps": ", warm-up of {} steps",
        },
    ),
    "lower-lr": ActionWords(
        "learning rate changed", "change the learning rate", {"factor": ", x {}", "warmup_steps": ", warm-up of {} steps"}
    ),
    "shrink-micro-batch": ActionWords("batches split", "split the batches", {"parts": " into {} parts"}),
    "save-checkpoint": ActionWords("checkpoint saved", "save a checkpoint", {}),
    "end-processes": ActionWords("processes ended", "end the processes", {}),
    "restart": ActionWords(
        "restarted",
        "restart",
        {
            "to": " from step {}",
            "workers": ", {} loader workers",
            "parts": ", batches in {} parts",
            "lr_factor": ", learning rate x {}",
            "lr_limit": ", learning rate kept under {}",
        },
    ),
    "stop": ActionWords("training stopped", "stop the training", {"why": ": {}"}),
}
SILENT = (  # settings that change nothing; no set, for a row may hold a value of any kind
    ("clip", "steps", 1),
    ("roll-back", "lr_factor", 1),
    ("roll-back", "warmup_steps", 0),
    ("lower-lr", "warmup_steps", 0),
    ("stop", "code", 0),
)


def finding_words(code: object) -> str:
    """A finding or cause in plain words; one that this version does not know is its code without hyphens."""
    return FINDINGS.get(str(code)) or plain(str(code)).replace("-", " ")


def action_words(kind: object) -> ActionWords:
    """An action in plain words; one that this version does not know is its name without hyphens."""
    name = plain(str(kind)).replace("-", " ")
    return ACTIONS.get(str(kind)) or ActionWords(name, name, {})


def plain(text: str) -> str:
    """Text from a file as one line that is safe for a terminal: no line ends, no control characters."""
    return "".join(character if character.isprintable() else "�" for character in " ".join(text.split()))
