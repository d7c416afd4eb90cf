"""A tiny vision transformer learns digits under the Hugging Face Trainer, with a checkpoint after each pass."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from digits_data import DEVICE, WORKERS, begin, keep_pace, split
from torch.utils.data import Dataset, TensorDataset
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

EPOCHS = 6


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
    config = ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=96, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=10,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir="checkpoints", num_train_epochs=EPOCHS, per_device_train_batch_size=32, per_device_eval_batch_size=199,
        learning_rate=3e-3, warmup_steps=30, lr_scheduler_type="cosine", eval_strategy="epoch", save_strategy="epoch",
        save_total_limit=2, load_best_model_at_end=False, metric_for_best_model="accuracy", logging_steps=10, report_to=[],
        disable_tqdm=True, use_cpu=DEVICE == "cpu", dataloader_num_workers=WORKERS, dataloader_persistent_workers=WORKERS > 0,
        dataloader_pin_memory=False, dataloader_drop_last=True, seed=int(os.environ.get("SEED", "0")),
    )  # fmt: skip
    trainer = Trainer(
        ViTForImageClassification(config), arguments, train_dataset=Pictures(train), eval_dataset=Pictures(held_out),
        compute_metrics=accuracy, callbacks=[Paced()],
    )  # fmt: skip
    trainer.train()
    print(json.dumps({"accuracy": trainer.evaluate()["eval_accuracy"]}), flush=True)


if __name__ == "__main__":
    main()
