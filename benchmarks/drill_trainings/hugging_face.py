"""A tiny vision transformer learns digits under the Hugging Face Trainer, with a checkpoint after each pass."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from digits_data import DEVICE, WORKERS, begin, keep_pace, split
from torch import nn
from torch.utils.data import Dataset, TensorDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

EPOCHS, WIDTH, PATCH = 6, 48, 4


class Picture(nn.Module):
    """Four patches of a picture, two layers of attention, ten classes; answers as models of the library do."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, PATCH, stride=PATCH)
        self.places = nn.Parameter(0.02 * torch.randn(4, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(WIDTH, 10)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss and the logits."""
        parts = self.patches(pixel_values).flatten(2).transpose(1, 2) + self.places
        logits = self.classifier(self.layers(parts).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Pictures(Dataset):
    """Pictures and labels under the names that the model has for them."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image, label = self.data[index]
        return {"pixel_values": image, "labels": label}


class Paced(TrainerCallback):
    """Steps take some time."""

    def on_step_end(self, *_args: object, **_more: object) -> None:
        keep_pace()


def accuracy(outcome: Any) -> dict[str, float]:
    """Share of held-out pictures that were told right."""
    return {"accuracy": float((outcome.predictions.argmax(-1) == outcome.label_ids).mean())}


def main() -> None:
    """Train, and print the last accuracy."""
    begin()
    train, held_out = split(1, 8, 8)
    arguments = TrainingArguments(
        output_dir="checkpoints", num_train_epochs=EPOCHS, per_device_train_batch_size=32, per_device_eval_batch_size=199,
        learning_rate=3e-3, warmup_steps=30, lr_scheduler_type="cosine", eval_strategy="epoch", save_strategy="epoch",
        save_total_limit=2, load_best_model_at_end=False, metric_for_best_model="accuracy", logging_steps=10, report_to=[],
        disable_tqdm=True, use_cpu=DEVICE == "cpu", dataloader_num_workers=WORKERS, dataloader_persistent_workers=WORKERS > 0,
        dataloader_pin_memory=False, dataloader_drop_last=True, seed=int(os.environ.get("SEED", "0")),
    )  # fmt: skip
    trainer = Trainer(
        Picture(), arguments, train_dataset=Pictures(train), eval_dataset=Pictures(held_out),
        compute_metrics=accuracy, callbacks=[Paced()],
    )  # fmt: skip
    trainer.train()
    print(json.dumps({"accuracy": trainer.evaluate()["eval_accuracy"]}), flush=True)


if __name__ == "__main__":
    main()
