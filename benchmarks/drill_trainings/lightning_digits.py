"""A fully connected network learns digits under Lightning, which keeps the last and the best checkpoint."""

from __future__ import annotations

import json
import logging
import warnings

import torch
from digits_data import DEVICE, begin, keep_pace, loaders
from torch import nn
from torch.nn.functional import cross_entropy

try:
    import lightning.pytorch as lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
except ImportError:
    import pytorch_lightning as lightning
    from pytorch_lightning.callbacks import ModelCheckpoint

EPOCHS = 8
warnings.filterwarnings("ignore", category=UserWarning)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


class Digits(lightning.LightningModule):
    """The network, how it learns and how it is judged."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: list[torch.Tensor], _number: int) -> torch.Tensor:
        loss = cross_entropy(self.model(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, *_args: object) -> None:
        keep_pace()

    def validation_step(self, batch: list[torch.Tensor], _number: int) -> None:
        logits = self.model(batch[0])
        self.log("val_loss", cross_entropy(logits, batch[1]))
        self.log("val_accuracy", (logits.argmax(1) == batch[1]).float().mean())

    def on_validation_epoch_end(self) -> None:
        shown = {name: round(float(value), 4) for name, value in self.trainer.callback_metrics.items()}
        print(f"epoch {self.current_epoch}: {shown}", flush=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    """Train, and print the last accuracy."""
    begin()
    train, held_out = loaders(32, 64)
    keep = ModelCheckpoint(dirpath="checkpoints", monitor="val_accuracy", mode="max", save_last=True)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu" if DEVICE == "cpu" else "gpu", devices=1, callbacks=[keep], logger=False,
        num_sanity_val_steps=0, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Digits(EPOCHS * len(train)), train, held_out)
    print(json.dumps({"accuracy": float(trainer.callback_metrics["val_accuracy"])}), flush=True)


if __name__ == "__main__":
    main()
