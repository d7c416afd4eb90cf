"""A training with the Hugging Face Trainer that can be killed at a step and resumed; prints a checksum of its weights.

hugging_face_trainer.py [--kill-at N] [--resume] [--policy heal] [--epochs N] [--lr-at N] [--save-every N]

Under torchrun each rank trains on its part of the data. With `--ids NAME` the samples of each batch go to the file NAME-RANK.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
from typing import Any

import torch
from sample_ids import RANK, WORLD, note_ids
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from holdfast.integrations.transformers import HoldfastCallback, newest_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--kill-at", type=int, default=-1, help="step at which the first attempt is killed")
parser.add_argument("--resume", action="store_true")
parser.add_argument("--policy", default="observe")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr-at", type=int, default=-1, help="step at which the learning rate becomes far too high")
parser.add_argument("--save-every", type=int, default=4)
parser.add_argument("--ids")
options = parser.parse_args()


class Text(Dataset[Any]):
    def __init__(self, count: int, seed: int) -> None:
        self.tokens = torch.randint(0, 32, (count, 8), generator=torch.Generator().manual_seed(seed)).sort(1).values

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Any:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Faults(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if state.global_step == options.kill_at and os.environ.get("HOLDFAST_ATTEMPT", "1") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        if state.global_step == options.lr_at:
            parts["optimizer"].param_groups[0]["lr"] = 100.0


set_seed(RANK)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))  # with dropout
data = Text(160, 1)


def note_rows(module: Any, args: Any, kwargs: Any) -> None:
    if module.training:
        note_ids(options.ids, [int((data.tokens == row).all(1).nonzero()[0]) for row in kwargs["input_ids"]])


model.register_forward_pre_hook(note_rows, with_kwargs=True)
arguments = TrainingArguments(
    output_dir="saved",
    num_train_epochs=options.epochs,
    per_device_train_batch_size=8 // WORLD,
    gradient_accumulation_steps=2,
    learning_rate=1e-2,
    eval_strategy="epoch",
    save_strategy="steps",
    save_steps=options.save_every,
    logging_steps=1,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(
    model,
    arguments,
    train_dataset=data,
    eval_dataset=Text(32, 2),
    callbacks=[Faults(), HoldfastCallback(name="hf", policy=options.policy)],
)
path = newest_checkpoint("saved") if options.resume else None
trainer.train(resume_from_checkpoint=path)
weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
print(
    json.dumps(
        {
            "from": path,
            "step": trainer.state.global_step,
            "epoch": trainer.state.epoch,
            "stopped": trainer.control.should_training_stop,
            "weights": hashlib.sha256(weights).hexdigest(),
            "rank": RANK,
        }
    )
)
