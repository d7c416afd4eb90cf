"""A Hugging Face Trainer on a tiny GPT-2: accumulation, clipping, a schedule, evaluation after each epoch."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from story import Story
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Text(Dataset):
    def __init__(self, count: int, seed: int) -> None:
        self.tokens = torch.randint(0, 64, (count, 12), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Listener(TrainerCallback):
    """What the Trainer itself says about its steps."""

    def on_log(self, args: object, state: object, control: object, logs: dict[str, float], **more: object) -> None:
        story.step(logs={name: value for name, value in logs.items() if "runtime" not in name and "per_second" not in name})


story = Story()
set_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2))
arguments = TrainingArguments(
    output_dir=str(Path(sys.argv[1]).parent / "trainer"),
    num_train_epochs=3,
    per_device_train_batch_size=4,
    per_device_eval_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    warmup_steps=4,
    max_grad_norm=0.5,
    eval_strategy="epoch",
    save_strategy="no",
    logging_steps=1,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model, arguments, train_dataset=Text(40, 1), eval_dataset=Text(20, 2), callbacks=[Listener()])
trainer.train()
story.save(model, names=[name for name, _ in model.named_parameters()])
