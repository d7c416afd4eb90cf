"""neuraloperator's Trainer: a Fourier neural operator that foresees how fronts form in a reaction-diffusion equation."""

import sys

import torch
from neuralop import H1Loss, LpLoss, Trainer
from neuralop.data.datasets.tensor_dataset import TensorDataset
from neuralop.models import FNO
from neuralop.training import AdamW
from torch.utils.data import DataLoader

PACKAGE = "neuralop"
PIP = "neuraloperator"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own


def solve(count, size=64):
    """Smooth random beginnings, and what the Allen-Cahn equation makes of them."""
    square = torch.fft.fftfreq(size, 1 / size) ** 2
    begin = torch.fft.ifft(torch.fft.fft(torch.randn(count, 1, size)) * 20 / (9 + square)).real
    field = begin
    for _ in range(100):
        field = torch.fft.ifft(torch.fft.fft(field + 0.02 * (field - field**3)) / (1 + 0.02 * 0.01 * square)).real
    return TensorDataset(begin, field)


torch.manual_seed(0)
training, test, epochs = solve(800), solve(100), 14
model = FNO(n_modes=(16,), in_channels=1, out_channels=1, hidden_channels=24, n_layers=3, projection_channel_ratio=2)
optimizer = AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
trainer = Trainer(model=model, n_epochs=epochs, device="cpu", eval_interval=1, verbose=True)
trainer.train(
    train_loader=DataLoader(training, batch_size=32, shuffle=True),
    test_loaders={"test": DataLoader(test, batch_size=50)},
    optimizer=optimizer,
    scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs),
    training_loss=H1Loss(d=1),
    eval_losses={"h1": H1Loss(d=1), "l2": LpLoss(d=1, p=2)},
    save_every=4,
    save_dir=sys.argv[1],
)
