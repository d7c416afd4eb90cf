"""pytorch-accelerated's Trainer: scikit-learn's breast cancer data, as a table, with a one-cycle learning rate."""

from functools import partial

import torch
from accelerate.utils import set_seed
from pytorch_accelerated import Trainer, TrainerPlaceholderValues
from sklearn.datasets import load_breast_cancer
from torch import nn, optim
from torch.utils.data import TensorDataset

PACKAGE = "pytorch-accelerated"
HALF = "build"

set_seed(0)
inputs, labels = load_breast_cancer(return_X_y=True)
inputs = torch.tensor((inputs - inputs.mean(0)) / inputs.std(0)).float()
training, held_out = (TensorDataset(inputs[part], torch.tensor(labels)[part]) for part in (slice(450), slice(450, None)))
model = nn.Sequential(nn.Linear(30, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2))
trainer = Trainer(model, loss_func=nn.CrossEntropyLoss(), optimizer=optim.AdamW(model.parameters(), lr=4e-4))
trainer.train(
    train_dataset=training,
    eval_dataset=held_out,
    num_epochs=40,
    per_device_batch_size=16,
    train_dataloader_kwargs={"num_workers": 0},
    eval_dataloader_kwargs={"num_workers": 0},
    create_scheduler_fn=partial(
        optim.lr_scheduler.OneCycleLR,
        max_lr=5e-3,
        epochs=TrainerPlaceholderValues.NUM_EPOCHS,
        steps_per_epoch=TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH,
    ),
)
