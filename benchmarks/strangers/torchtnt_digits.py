"""TorchTNT's fit with an AutoUnit: a small CNN on digits, evaluated and saved by its DCP callback after every epoch."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchtnt.framework.auto_unit import AutoUnit
from torchtnt.framework.callbacks import DistributedCheckpointSaver
from torchtnt.framework.fit import fit
from torchtnt.utils.env import seed

PACKAGE = "torchtnt"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own


class Classifier(AutoUnit):
    def configure_optimizers_and_lr_scheduler(self, module):
        optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(training))

    def compute_loss(self, _state, data):
        inputs, labels = data
        outputs = self.module(inputs)
        return nn.functional.cross_entropy(outputs, labels), outputs

    def on_eval_start(self, _state):
        self.correct = 0

    def on_eval_step_end(self, _state, data, _step, _loss, outputs):
        self.correct += (outputs.argmax(1) == data[1]).sum().item()

    def on_eval_end(self, _state):
        print(f"epoch {self.train_progress.num_epochs_completed}: accuracy {self.correct / len(test.dataset):.4f}")


EPOCHS = 8
seed(0)
digits = load_digits()
pictures, labels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
order = torch.randperm(len(labels))
training = DataLoader(TensorDataset(pictures[order[:1400]], labels[order[:1400]]), batch_size=32, shuffle=True)
test = DataLoader(TensorDataset(pictures[order[1400:]], labels[order[1400:]]), batch_size=128)
network = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10),
)  # fmt: skip
unit = Classifier(module=network, device=torch.device("cpu"), step_lr_interval="step", clip_grad_norm=5.0)
saver = DistributedCheckpointSaver(sys.argv[1], save_every_n_epochs=1, keep_last_n_checkpoints=2)
fit(unit, training, test, max_epochs=EPOCHS, callbacks=[saver])
