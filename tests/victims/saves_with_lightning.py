"""Fits two batches with Lightning, which leaves a .ckpt in the given folder."""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import lightning
import torch


class Model(lightning.LightningModule):
    """One layer, with settings that are saved."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.layer(batch).mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


if __name__ == "__main__":
    trainer = lightning.Trainer(
        default_root_dir=sys.argv[1],
        max_epochs=1,
        limit_train_batches=2,
        accelerator="cpu",
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2))
