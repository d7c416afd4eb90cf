"""Saves checkpoints with Hugging Face's libraries: the Trainer's, `save_pretrained` whole and in shards, Accelerate's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")

import torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Counter:
    """Something of one's own that Accelerate saves too."""

    def state_dict(self) -> dict[str, int]:
        return {"seen": 3}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


def with_trainer(out: Path) -> None:
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    data = [{"input_ids": torch.randint(0, 64, (8,)), "labels": torch.randint(0, 64, (8,))} for _ in range(8)]
    settings = {"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 2, "logging_steps": 1}
    arguments = TrainingArguments(str(out / "trainer"), **settings, report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    trainer.save_model(str(out / "trainer"))
    model.save_pretrained(out / "plain")
    model.save_pretrained(out / "shards", max_shard_size="8KB")


def with_accelerate(out: Path) -> None:
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    accelerator.register_for_checkpointing(Counter())
    for batch in loader:
        accelerator.backward(model(batch).sum())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    accelerator.save_state(str(out / "state"))
    accelerator.save_state(str(out / "state-pickled"), safe_serialization=False)


if __name__ == "__main__":
    torch.manual_seed(0)
    with_trainer(Path(sys.argv[1]))
    with_accelerate(Path(sys.argv[1]))
