"""TRL's supervised fine-tuning: a small causal language model learns to count in words."""

import sys

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

PACKAGE = "trl"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

digits = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
words = ["[PAD]", "[EOS]", *digits]
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[PAD]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", eos_token="[EOS]")
rows = [range(start, start + 12 * step, step) for start in range(10) for step in range(1, 10)]
texts = [" ".join(digits[number % 10] for number in row) for row in rows] * 10
torch.manual_seed(0)
size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), max_position_embeddings=32, pad_token_id=0, eos_token_id=1, **size))
settings = SFTConfig(
    sys.argv[1], max_steps=150, per_device_train_batch_size=16, learning_rate=2e-3, logging_steps=20, max_length=32, use_cpu=True,
    bf16=False, report_to="none",
)  # fmt: skip
SFTTrainer(model, settings, train_dataset=Dataset.from_dict({"text": texts}), processing_class=fast).train()
