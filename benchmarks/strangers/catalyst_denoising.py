"""Catalyst's SupervisedRunner: a small residual network removes noise from patches of scikit-learn's two photos."""

import sys
from pathlib import Path

import torch
from accelerate.state import DistributedType
from catalyst import dl
from catalyst.utils import set_global_seed
from sklearn.datasets import load_sample_images
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PACKAGE = "catalyst"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

DistributedType.TPU = DistributedType.XLA  # a name that Accelerate dropped and Catalyst uses


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.noise = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(),
            nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 3, 3, padding=1),
        )  # fmt: skip

    def forward(self, noisy):
        return noisy - self.noise(noisy)


def noisy_and_clean(photos):
    """All patches of 20 x 20 pixels, and the same ones with noise."""
    clean = photos.unfold(2, 20, 20).unfold(3, 20, 20).permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 20, 20)
    return TensorDataset(clean + 0.1 * torch.randn(clean.shape), clean)


@torch.no_grad()
def signal_to_noise(denoised, clean):
    return -10 * (denoised - clean).square().mean().log10()


folder = Path(sys.argv[1]).absolute()
set_global_seed(0)
photos = torch.stack([torch.tensor(photo) for photo in load_sample_images().images]).permute(0, 3, 1, 2) / 255
loaders = {  # the right fifth of both photos is held out
    "train": DataLoader(noisy_and_clean(photos[..., :500]), batch_size=32, shuffle=True),
    "valid": DataLoader(noisy_and_clean(photos[..., 500:]), batch_size=100),
}
model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
latest = folder / "checkpoints/runner.last.pth"  # of an earlier start, which this one continues
callbacks = [
    dl.FunctionalMetricCallback("denoised", "clean", metric_fn=signal_to_noise, metric_key="psnr"),
    dl.SchedulerCallback(mode="epoch"),
    dl.CheckpointCallback(
        str(folder / "checkpoints"), loader_key="valid", metric_key="psnr", minimize=False, topk=3, mode="runner",
        resume_runner=str(latest) if latest.exists() else None,
    ),
]  # fmt: skip
runner = dl.SupervisedRunner(input_key="noisy", output_key="denoised", target_key="clean", loss_key="loss")
runner.train(
    model=model, criterion=nn.MSELoss(), optimizer=optimizer, scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 8, gamma=0.5),
    loaders=loaders, loggers={"console": dl.ConsoleLogger(), "csv": dl.CSVLogger(str(folder / "logs"))},
    callbacks=callbacks, num_epochs=24, seed=0, cpu=True,
)  # fmt: skip
