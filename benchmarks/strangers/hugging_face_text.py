"""Hugging Face's Trainer: a small causal language model, byte by byte, on the source of a module of Python's."""

import argparse
import inspect
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

PACKAGE = "transformers"
HALF = "score"
ARGUMENTS = "{folder}"  # of each run's own
WIDTH = 64

text = torch.frombuffer(bytearray(inspect.getsource(argparse).encode()), dtype=torch.uint8).long()
pieces = [{"input_ids": piece, "labels": piece} for piece in text[: len(text) // WIDTH * WIDTH].view(-1, WIDTH)]
size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=WIDTH, **size))
habits = {"eval_strategy": "steps", "eval_steps": 100, "save_steps": 100, "logging_steps": 20, "report_to": "none"}
settings = TrainingArguments(
    sys.argv[1], max_steps=300, per_device_train_batch_size=16, learning_rate=2e-3, warmup_steps=20, use_cpu=True, **habits
)
Trainer(model, settings, train_dataset=pieces[:-100], eval_dataset=pieces[-100:]).train()
