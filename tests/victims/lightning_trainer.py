"""A Lightning training that can be killed at a step and resumed; prints a checksum of its weights at the end.

lightning_trainer.py [--kill-at N] [--resume] [--policy heal] [--epochs N] [--workers N] [--lr-at N] [--save-every N]

Under torchrun each rank trains on its part of the data. With `--ids NAME` the samples of each batch go to the file NAME-RANK.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import signal
import warnings
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sample_ids import RANK, WORLD, note_ids
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import holdfast
from holdfast.integrations.lightning import HoldfastCallback, newest_checkpoint

warnings.filterwarnings("ignore", module="lightning")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
parser = argparse.ArgumentParser()
parser.add_argument("--kill-at", type=int, default=-1, help="step at which the first attempt is killed")
parser.add_argument("--resume", action="store_true")
parser.add_argument("--policy", default="observe")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--lr-at", type=int, default=-1, help="step at which the learning rate becomes far too high")
parser.add_argument("--save-every", type=int, default=4)
parser.add_argument("--ids")
options = parser.parse_args()


class Noisy(Dataset[Any]):
    """Random augmentation: a sample is different each time."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(count, 8, generator=generator)
        self.labels = (self.inputs.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] + 0.1 * torch.randn(8), self.labels[index], index


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        if self.global_step == options.kill_at and os.environ.get("HOLDFAST_ATTEMPT", "1") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.global_step == options.lr_at:
            self.trainer.optimizers[0].param_groups[0]["lr"] = 100.0
        note_ids(options.ids, batch[2].tolist())
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        outputs = self.net(batch[0])
        self.log("val_loss", torch.nn.functional.cross_entropy(outputs, batch[1]))
        self.log("val_acc", (outputs.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10 * options.epochs)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


torch.manual_seed(RANK)
trainer = lightning.Trainer(
    max_epochs=options.epochs,
    accelerator="cpu",
    devices=WORLD,
    strategy="ddp" if WORLD > 1 else "auto",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[
        HoldfastCallback(name="lit", policy=options.policy),
        ModelCheckpoint("saved", every_n_train_steps=options.save_every or None, save_top_k=-1),
    ],
)
data = Noisy(160, 1)
sampler = DistributedSampler(data, WORLD, RANK) if WORLD > 1 else None
loader = DataLoader(data, batch_size=16 // WORLD, shuffle=sampler is None, sampler=sampler, num_workers=options.workers)
path = newest_checkpoint("saved") if options.resume else None
model = Model()
trainer.fit(model, holdfast.Position(loader), DataLoader(Noisy(32, 2), batch_size=16), ckpt_path=path)
weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
print(
    json.dumps(
        {
            "from": path,
            "step": trainer.global_step,
            "epoch": trainer.current_epoch,
            "stopped": trainer.should_stop,
            "weights": hashlib.sha256(weights).hexdigest(),
            "rank": RANK,
        }
    )
)
