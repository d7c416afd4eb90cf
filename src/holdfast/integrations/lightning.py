"""Lightning: `Trainer(callbacks=[HoldfastCallback()])`.

To resume in the middle of an epoch, pass the loader as `holdfast.Position(loader)`: Lightning keeps the state of such a loader in
its checkpoint, and this callback restores it, with the random generators, at every resume.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdfast
from holdfast.checkpoints.clean import newest
from holdfast.integrations.trainer_run import TrainerRun
from holdfast.state.position import read_positions, set_positions

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError:
    raise ImportError("Holdfast's callback for Lightning needs it: pip install lightning") from None


class HoldfastCallback(Callback):
    """Records a Lightning training; `options` are those of `holdfast.watch`: name, folder, policy, …"""

    def __init__(self, **options: Any) -> None:
        self.holdfast = TrainerRun(**options)
        self._trainer: Trainer | None = None
        self._positions: list[list[Any]] = []  # of the checkpoint that the trainer resumes from
        self._before: dict[str, Any] = {}  # metrics at the start of an evaluation
        self._has_saved = False

    # The run

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The optimizers exist."""
        self._trainer = trainer
        self.holdfast.begin(pl_module, trainer.optimizers, stop=lambda: setattr(trainer, "should_stop", True))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Everything is restored; the first batch comes next."""
        set_positions(self._data(), self._positions, counted=True)  # Lightning: only within an epoch, and those of rank 0
        self._positions = []
        if trainer.ckpt_path:  # within an epoch, Lightning does not call `on_train_epoch_start`
            self.holdfast.resumed(trainer.ckpt_path, trainer.global_step, trainer.current_epoch)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An epoch begins."""
        self.holdfast.epoch(trainer.current_epoch)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save if `heal` asked for it, and list what was saved."""
        if self.holdfast.takes_save():
            folder = getattr(trainer.checkpoint_callback, "dirpath", None) or trainer.default_root_dir
            self.holdfast.save(folder, ".ckpt", trainer.save_checkpoint)
        self._list_saved(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An evaluation begins."""
        self._before = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An evaluation is over; the check before the first step is none."""
        if not trainer.sanity_checking:
            new = {name: value for name, value in trainer.callback_metrics.items() if self._before.get(name) is not value}
            self.holdfast.evaluated(new, epoch=trainer.current_epoch, split="val")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The training is over."""
        self._list_saved(trainer)
        self.holdfast.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The training ends with an error, which Lightning raises after this."""
        self.holdfast.exit_code = 0
        self.holdfast.end()

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Goes into every checkpoint of Lightning."""
        return {"positions": read_positions(self._data())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The trainer resumes from a checkpoint."""
        self._positions = state_dict["positions"]

    def _data(self) -> list[holdfast.Position[Any]]:
        """The training loaders whose position is known."""
        loaders = self._trainer.train_dataloader if self._trainer is not None else None
        several = loaders.values() if isinstance(loaders, dict) else loaders if isinstance(loaders, (list, tuple)) else [loaders]
        return [loader for loader in several if isinstance(loader, holdfast.Position)]

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """The trainer is about to write a checkpoint."""
        self._has_saved = True

    def _list_saved(self, trainer: Trainer) -> None:
        """List what the trainer's checkpoint callbacks have written since."""
        if self._has_saved:
            self._has_saved = False
            for callback in trainer.checkpoint_callbacks:
                names = [getattr(callback, name, "") for name in ("last_model_path", "best_model_path")]
                self.holdfast.wrote(*getattr(callback, "best_k_models", ()), *names)


def newest_checkpoint(folder: str | Path) -> str | None:
    """The newest `.ckpt` below a folder that is whole and finite, for `trainer.fit(…, ckpt_path=…)`; None if there is none."""
    return newest(Path(folder).rglob("*.ckpt"))
