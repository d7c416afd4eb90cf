"""Hugging Face Trainer: `Trainer(…, callbacks=[HoldfastCallback()])`.

The Trainer skips used batches by itself when it resumes in the middle of an epoch. `newest_checkpoint` gives it one to resume
from that is whole:

    trainer.train(resume_from_checkpoint=newest_checkpoint(arguments.output_dir))
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from holdfast.checkpoints.clean import first_clean
from holdfast.integrations.trainer_run import TrainerRun

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError:
    raise ImportError("Holdfast's callback for the Hugging Face Trainer needs it: pip install 'transformers[torch]'") from None

_NOT_METRICS = ("_runtime", "_per_second", "epoch")  # ends of names


class HoldfastCallback(TrainerCallback):
    """Records a training of the Hugging Face Trainer; `options` are those of `holdfast.watch`: name, folder, policy, …"""

    def __init__(self, **options: Any) -> None:
        self.holdfast = TrainerRun(**options)
        self._stops = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """Model and optimizer exist, and are restored."""
        self._stops = False
        optimizer = getattr(parts["optimizer"], "optimizer", parts["optimizer"])  # Accelerate's is a wrapper
        self.holdfast.begin(parts["model"], optimizer, stop=lambda: setattr(self, "_stops", True))
        if state.global_step:
            self.holdfast.resumed(_checkpoint(args, state), state.global_step)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """An epoch begins."""
        self.holdfast.epoch(int(state.epoch or 0))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> TrainerControl:
        """Ask the Trainer for what `heal` wants."""
        control.should_save |= self.holdfast.takes_save()
        control.should_training_stop |= self._stops
        return control

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """An evaluation is over."""
        epoch = max(0, math.ceil(state.epoch or 0) - 1)  # 2.0 is the end of the second
        chosen = {name: value for name, value in parts["metrics"].items() if not name.endswith(_NOT_METRICS)}
        self.holdfast.evaluated(chosen, epoch=epoch, split="val")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """A checkpoint is written."""
        self.holdfast.wrote(_checkpoint(args, state))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        """The training is over."""
        self.holdfast.end()


def newest_checkpoint(folder: str | Path) -> str | None:
    """The newest `checkpoint-N` in an output folder that is whole and finite, for `resume_from_checkpoint`; None if none is."""
    names = {path: path.name.rpartition("-")[2] for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*")}
    return first_clean(sorted((path for path in names if names[path].isdigit()), key=lambda path: -int(names[path])))


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
