"""The same under Lightning: lightning_peer.py nothing | anomaly | early | spike."""

from __future__ import annotations

import sys
import warnings

import torch
from network import BATCH, EPOCHS, MOMENTUM, RATE, Clock, begin, keep_pace, make, split
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

try:
    import lightning.pytorch as lightning
    from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
except ImportError:
    import pytorch_lightning as lightning
    from pytorch_lightning.callbacks import Callback, EarlyStopping, ModelCheckpoint
warnings.filterwarnings("ignore", category=UserWarning)


class Digits(lightning.LightningModule):
    """The network, how it learns and how it is judged."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.clock, self.model = steps, Clock(), make()

    def training_step(self, batch: list[torch.Tensor], _number: int) -> torch.Tensor:
        loss = cross_entropy(self.model(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, *_args: object) -> None:
        keep_pace()
        self.clock.step()

    def validation_step(self, batch: list[torch.Tensor], _number: int) -> None:
        logits = self.model(batch[0])
        self.log("val_loss", cross_entropy(logits, batch[1]))
        self.log("val_acc", (logits.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.SGD(self.parameters(), lr=RATE, momentum=MOMENTUM)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def watcher(how: str) -> list[Callback]:
    """What Lightning has for it, as it comes."""
    if how == "early":
        return [EarlyStopping(monitor="val_loss", check_finite=True, patience=3, verbose=True)]
    if how == "spike":
        from lightning.pytorch.callbacks.spike import SpikeDetection

        return [SpikeDetection(atol=1.0)]  # without it, healthy runs are ended too, once their loss is small
    return []


def main(how: str) -> None:
    """Train."""
    begin()
    train, rest = split(64)
    loader = DataLoader(train, batch_size=BATCH, shuffle=True, drop_last=True)
    module = Digits(EPOCHS * len(loader))
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, detect_anomaly=how == "anomaly", num_sanity_val_steps=0,
        callbacks=[ModelCheckpoint(dirpath="checkpoints", save_last=True), *watcher(how)], enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader, DataLoader(rest, batch_size=200))
    module.clock.end(float(trainer.callback_metrics["val_acc"]))


if __name__ == "__main__":
    main(sys.argv[1])
