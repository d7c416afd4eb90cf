"""RecBole's Trainer: SASRec predicts the next item of walks made from a chain, evaluated after every epoch."""

import os
import sys
from logging import getLogger
from pathlib import Path

import numpy as np
from recbole.config import Config
from recbole.data import create_dataset, data_preparation
from recbole.model.sequential_recommender import SASRec
from recbole.trainer import Trainer
from recbole.utils import init_logger, init_seed

PACKAGE = "recbole"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

np.float_, np.complex_, np.unicode_ = np.float64, np.complex128, np.str_  # names that NumPy 2 dropped and RecBole uses
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # RecBole's checkpoints hold more than weights: its Config
Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
os.chdir(sys.argv[1])  # RecBole writes its logs where it is started
random = np.random.default_rng(0)
followers = np.stack([random.permutation(100) for _ in range(3)], axis=1)
lines = ["user_id:token\titem_id:token\ttimestamp:float"]
for user in range(200):
    item = random.integers(100)
    for moment in range(12):
        lines.append(f"u{user}\ti{item}\t{moment}")
        item = random.choice(followers[item], p=[0.7, 0.2, 0.1])
Path("walks").mkdir(exist_ok=True)
Path("walks/walks.inter").write_text("\n".join(lines) + "\n")

settings = {
    "data_path": ".", "checkpoint_dir": "saved", "use_gpu": False, "seed": 0, "show_progress": False,
    "load_col": {"inter": ["user_id", "item_id", "timestamp"]}, "MAX_ITEM_LIST_LENGTH": 10, "train_neg_sample_args": None,
    "epochs": 9, "train_batch_size": 64, "eval_batch_size": 200, "learning_rate": 5e-3, "stopping_step": 15,
    "n_layers": 1, "hidden_size": 32, "inner_size": 64, "metrics": ["Hit", "MRR"], "topk": [5], "valid_metric": "MRR@5",
}  # fmt: skip
config = Config(model="SASRec", dataset="walks", config_dict=settings)
init_seed(config["seed"], config["reproducibility"])
init_logger(config)
training, validation, test = data_preparation(config, create_dataset(config))
model = SASRec(config, training.dataset).to(config["device"])
trainer = Trainer(config, model)
saved = sorted(Path("saved").glob("*.pth"), key=lambda path: path.stat().st_mtime)
if saved:  # a second start goes on after the best epoch
    trainer.resume_checkpoint(saved[-1])
trainer.fit(training, validation, show_progress=False)
getLogger().info(f"test result: {trainer.evaluate(test)}")
