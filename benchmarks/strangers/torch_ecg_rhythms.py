"""torch-ecg's BaseTrainer: a residual network tells rhythms and beats apart in made-up ECGs of two leads; the best is saved."""

import sys
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch_ecg.cfg import CFG, DEFAULTS
from torch_ecg.components.outputs import ClassificationOutput
from torch_ecg.components.trainer import BaseTrainer
from torch_ecg.model_configs import ECG_CRNN_CONFIG
from torch_ecg.models import ECG_CRNN

PACKAGE = "torch-ecg"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
DEFAULTS.set_seed(0)
classes, rate, seconds = ["sinus", "fibrillation", "extra beats", "raised ST"], 100, 6
leads = np.array([[0.12, -0.1, 1.0, -0.2, 0.3], [0.08, -0.05, 0.6, -0.35, 0.2]])  # how high the waves P, Q, R, S and T are


def ecg(kind, random):
    """One of that class: a few bumps per beat, with noise and a wandering baseline."""
    times = np.arange(rate * seconds) / rate
    signal = 0.1 * np.sin(2 * np.pi * (random.uniform(0.1, 0.4) * times + random.random()))
    signal = signal + 0.05 * random.normal(size=(2, len(times)))
    usual, beat = random.uniform(0.6, 1.1), random.uniform(-0.5, 0)
    while beat < seconds:
        extra = kind == 2 and random.random() < 0.3
        widths = np.array([0.03, 0.012, 0.015, 0.012, 0.06]) * (3 if extra else 1)
        heights = leads * random.uniform(0.9, 1.1) * ([0, 2, 1.3, 2, -1] if extra else [kind != 1, 1, 1, 1, 1])
        bumps = np.exp(-(((times - beat)[:, None] - [-0.16, -0.03, 0, 0.03, 0.25]) ** 2) / (2 * widths**2))
        signal = signal + heights @ bumps.T
        if kind == 3:
            signal = signal + 0.12 * ((times > beat + 0.05) & (times < beat + 0.2))
        beat += usual * (random.uniform(0.5, 1.5) if kind == 1 else 0.6 if extra else random.uniform(0.97, 1.03))
    return signal.astype(np.float32)


class Records(TensorDataset):
    def __init__(self, config, training=True):
        random, count = np.random.default_rng(int(training)), 1600 if training else 400
        kinds = torch.tensor(random.integers(len(config.classes), size=count))
        super().__init__(torch.tensor(np.stack([ecg(kind, random) for kind in kinds])), torch.eye(len(config.classes))[kinds])


class Trainer(BaseTrainer):
    batch_dim, extra_required_train_config_fields = 0, []

    def _setup_dataloaders(self, train_dataset=None, val_dataset=None):  # noqa: ARG002
        self.train_loader, self.val_loader = (
            DataLoader(self.dataset_cls(self.train_config, training), self.batch_size, training, collate_fn=self.collate_fn)
            for training in (True, False)
        )

    def run_one_step(self, signals, labels):
        return self.model(signals.to(self.device, self.dtype)), labels.to(self.device, self.dtype)

    @torch.no_grad()
    def evaluate(self, data_loader):
        self.model.eval()
        told = [self.run_one_step(*batch) for batch in data_loader]
        self.model.train()
        scores, labels = (torch.cat(part) for part in zip(*told, strict=True))
        told, right = scores.argmax(-1).numpy(), labels.argmax(-1).numpy()
        output = ClassificationOutput(classes=self.train_config.classes, prob=scores.softmax(-1).numpy(), pred=told, labels=right)
        return {"accuracy": (told == right).mean(), "f1": output.compute_metrics().f1_measure}


train_config = CFG(
    classes=classes, n_epochs=8, batch_size=32, optimizer="adamw", learning_rate=1e-3, decay=1e-2, lr_scheduler="one_cycle",
    max_lr=3e-3, loss="CrossEntropyLoss", monitor="f1", checkpoints=folder / "checkpoints", model_dir=folder / "best",
    log_dir=folder / "log", log_step=50, keep_checkpoint_max=2, early_stopping=CFG(min_delta=0.001, patience=5),
    label_smooth=CFG(smoothing=0.1),
)  # fmt: skip
model_config = CFG(ECG_CRNN_CONFIG, fs=rate)
model_config.cnn.name = "resnet_nature_comm"
model_config.cnn.resnet_nature_comm.update(num_filters=[16, 24, 32, 48], filter_lengths=9)
model_config.cnn.resnet_nature_comm.stem.update(num_filters=16, filter_lengths=9)
model_config.clf.out_channels = [64]
model = ECG_CRNN(classes=classes, n_leads=2, config=model_config)
trainer = Trainer(model, Records, model_config, train_config, device=torch.device("cpu"))
trainer.train()  # it cannot resume
print(f"best at epoch {trainer.best_epoch}: accuracy {trainer.best_eval_res['accuracy']:.4f}, F1 {trainer.best_metric:.4f}")
