"""MMEngine's Runner with its default hooks: a small convolutional network on scikit-learn's digits."""

import sys

import torch
import torch.nn.functional as F
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.runner import Runner
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

PACKAGE = "mmengine"
HALF = "score"
ARGUMENTS = "{folder}"  # of each run's own


class Network(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
        self.layers = nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 16, 10))

    def forward(self, images, labels, mode):
        x = self.layers(images)
        return {"loss": F.cross_entropy(x, labels)} if mode == "loss" else (x, labels)


class Accuracy(BaseMetric):
    def process(self, data_batch, data_samples):  # noqa: ARG002
        score, labels = data_samples
        self.results.append({"batch_size": len(labels), "correct": (score.argmax(dim=1) == labels).sum().item()})

    def compute_metrics(self, results):
        return {"accuracy": 100 * sum(r["correct"] for r in results) / sum(r["batch_size"] for r in results)}


digits = load_digits()
images, labels = torch.tensor(digits.images / 16).float()[:, None], torch.tensor(digits.target)
collate, shuffled = {"type": "default_collate"}, {"type": "DefaultSampler", "shuffle": True}
training, held_out = TensorDataset(images[:1400], labels[:1400]), TensorDataset(images[1400:], labels[1400:])
Runner(
    model={"type": Network},  # built by the Runner, after it has set the seed
    work_dir=sys.argv[1],
    train_dataloader={"batch_size": 32, "dataset": training, "sampler": shuffled, "collate_fn": collate},
    optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.02, "momentum": 0.9}},
    param_scheduler={"type": "MultiStepLR", "by_epoch": True, "milestones": [10], "gamma": 0.3},
    train_cfg={"by_epoch": True, "max_epochs": 15, "val_interval": 1},
    val_dataloader={"batch_size": 128, "dataset": held_out, "sampler": {"type": "DefaultSampler"}, "collate_fn": collate},
    val_cfg={},
    val_evaluator={"type": Accuracy},
    randomness={"seed": 0},
).train()
