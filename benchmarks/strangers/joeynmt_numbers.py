"""Joey NMT's TrainManager: a small transformer that spells numbers out, validated and saved every 50 updates."""

import random
import sys
from pathlib import Path

from joeynmt.helpers import set_seed
from joeynmt.helpers_for_ddp import get_logger
from joeynmt.training import train

PACKAGE = "joeynmt"
HALF = "score"
ARGUMENTS = "{folder}"  # of each run's own

ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def spelled(number):
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = f" {spelled(number % size)}" if number % size else ""
            return f"{spelled(number // size)} {name}{rest}"
    if number < 20:
        return ONES[number]
    return TENS[number // 10 - 2] + (f" {ONES[number % 10]}" if number % 10 else "")


folder = Path(sys.argv[1]).absolute()
folder.mkdir(parents=True, exist_ok=True)
numbers = random.Random(0).sample(range(10_000), 5200)
for name, part in {"train": numbers[:5000], "dev": numbers[5000:5100], "test": numbers[5100:]}.items():
    (folder / f"{name}.digits").write_text("".join(" ".join(str(number)) + "\n" for number in part))
    (folder / f"{name}.words").write_text("".join(spelled(number) + "\n" for number in part))
layers = {
    "type": "transformer", "num_layers": 1, "num_heads": 4, "hidden_size": 64, "ff_size": 128, "dropout": 0.1,
    "embeddings": {"embedding_dim": 64},
}  # fmt: skip
latest = folder / "model/latest.ckpt"  # of an earlier start, which this one continues
settings = {
    "name": "numbers", "model_dir": str(folder / "model"), "use_cuda": False, "random_seed": 0,
    "data": {
        **{name: str(folder / name) for name in ("train", "dev", "test")}, "dataset_type": "plain",
        "src": {"lang": "digits", "level": "word"}, "trg": {"lang": "words", "level": "word"},
    },
    "testing": {"batch_size": 100, "max_output_length": 20, "eval_metrics": ["sequence_accuracy", "token_accuracy"]},
    "training": {
        "optimizer": "adam", "learning_rate": 2e-3, "learning_rate_min": 1e-6, "scheduling": "warmupinversesquareroot",
        "learning_rate_warmup": 60, "clip_grad_norm": 1.0, "batch_size": 40, "epochs": 10, "updates": 350,
        "logging_freq": 10, "validation_freq": 50, "early_stopping_metric": "loss", "keep_best_ckpts": 3,
        "load_model": str(latest) if latest.exists() else None,
    },
    "model": {"initializer": "xavier_uniform", "encoder": layers, "decoder": layers},
}  # fmt: skip
latest.parent.mkdir(exist_ok=True)
get_logger("", log_file=str(folder / "model/train.log"))
set_seed(0)  # Joey NMT itself sets the seed only after it has made the model
train(rank=0, world_size=None, cfg=settings)
