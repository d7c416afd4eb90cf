"""Avalanche's Naive with replay: a convolutional network learns scikit-learn's digits, five classes and then the other five."""

import sys
from pathlib import Path

import dill
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

try:
    import torchvision  # noqa: F401
except RuntimeError:  # operator torchvision::nms does not exist: declared, it is never called
    declared = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from avalanche.benchmarks import nc_benchmark
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.evaluation.metrics import accuracy_metrics, forgetting_metrics, loss_metrics
from avalanche.logging import InteractiveLogger
from avalanche.training.determinism.rng_manager import RNGManager
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from avalanche.training.supervised import Naive

PACKAGE = "avalanche"
PIP = "avalanche-lib"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own


folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
dill.settings["recurse"] = True  # checkpoints hold what a function needs, not its whole module
RNGManager.set_random_seeds(0)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
order = torch.randperm(len(images))
images, labels = (images[order] / 16).float().reshape(-1, 1, 8, 8), labels[order]
train, test = TensorDataset(images[:1400], labels[:1400]), TensorDataset(images[1400:], labels[1400:])
for part in (train, test):
    part.targets = part.tensors[1].tolist()
benchmark = nc_benchmark(train, test, n_experiences=2, task_labels=False, seed=0)

model = nn.Sequential(
    nn.Conv2d(1, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
    nn.MaxPool2d(2), nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128 * 16, 10),
)  # fmt: skip
strategy = Naive(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), criterion=nn.CrossEntropyLoss(),
    train_mb_size=16, train_epochs=6, eval_mb_size=100, eval_every=1, plugins=[ReplayPlugin(mem_size=200)],
    evaluator=EvaluationPlugin(
        accuracy_metrics(epoch=True, experience=True, stream=True), loss_metrics(minibatch=True, epoch=True),
        forgetting_metrics(experience=True), loggers=[InteractiveLogger()],
    ),
)  # fmt: skip
strategy, done = maybe_load_checkpoint(strategy, folder / "checkpoint.pkl")
for experience in benchmark.train_stream[done:]:
    strategy.train(experience, eval_streams=[benchmark.test_stream])
    save_checkpoint(strategy, folder / "checkpoint.pkl")
results = strategy.eval(benchmark.test_stream)
print(f"accuracy {results['Top1_Acc_Stream/eval_phase/test_stream/Task000']:.4f}")
