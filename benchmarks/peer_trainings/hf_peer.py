"""The same under the Hugging Face Trainer: hf_peer.py filtered | unfiltered (what its log does with NaN)."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from network import BATCH, EPOCHS, MOMENTUM, RATE, Clock, begin, keep_pace, make, split
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset
from transformers import Trainer, TrainerCallback, TrainingArguments


class Named(Dataset):
    """Pictures and labels under the names that the model has for them."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image, label = self.data[index]
        return {"images": image, "labels": label}


class Model(nn.Module):
    """The network, in the form that the Trainer asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make()

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.model(images)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class Timed(TrainerCallback):
    """Steps take some time, which is measured."""

    def __init__(self) -> None:
        self.clock = Clock()

    def on_step_end(self, *_args: object, **_more: object) -> None:
        keep_pace()
        self.clock.step()


def accuracy(outcome: Any) -> dict[str, float]:
    """Share of held-out pictures that were told right."""
    return {"accuracy": float((outcome.predictions.argmax(-1) == outcome.label_ids).mean())}


def main(how: str) -> None:
    """Train."""
    begin()
    train, rest = split(64)
    timed, model, steps = Timed(), Model(), EPOCHS * (len(train) // BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    arguments = TrainingArguments(
        output_dir="checkpoints", num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, per_device_eval_batch_size=199,
        eval_strategy="epoch", save_strategy="epoch", save_total_limit=2, logging_steps=10, report_to=[], disable_tqdm=True,
        use_cpu=True, dataloader_pin_memory=False, dataloader_drop_last=True, seed=int(os.environ.get("SEED", "0")),
        logging_nan_inf_filter=how == "filtered",
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, train_dataset=Named(train), eval_dataset=Named(rest), compute_metrics=accuracy, callbacks=[timed],
        optimizers=(optimizer, schedule),
    )  # fmt: skip
    trainer.train()
    timed.clock.end(trainer.evaluate()["eval_accuracy"])


if __name__ == "__main__":
    main(sys.argv[1])
