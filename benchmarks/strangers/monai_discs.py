"""MONAI's supervised trainer: a U-Net that segments bright discs in noise, validated by Dice after each epoch."""

import numpy as np
import torch
from monai.data import DataLoader, Dataset
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import MeanDice, StatsHandler, ValidationHandler, from_engine
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import Activationsd, AsDiscreted, Compose
from monai.utils import set_determinism

PACKAGE = "monai"
HALF = "build"

set_determinism(0)
drawn = np.random.default_rng(0)
rows, columns = np.mgrid[:32, :32]
pairs = []
for _ in range(240):
    (row, column), radius = drawn.uniform(8, 24, 2), drawn.uniform(3, 8)
    disc = ((rows - row) ** 2 + (columns - column) ** 2 < radius**2).astype(np.float32)[None]
    pairs.append(
        {"image": torch.from_numpy(disc + drawn.normal(0, 0.5, disc.shape).astype(np.float32)), "label": torch.from_numpy(disc)}
    )

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
network = UNet(spatial_dims=2, in_channels=1, out_channels=1, channels=(8, 16, 32), strides=(2, 2)).to(device)
to_masks = Compose([Activationsd("pred", sigmoid=True), AsDiscreted("pred", threshold=0.5)])
evaluator = SupervisedEvaluator(
    device, DataLoader(Dataset(pairs[200:]), batch_size=20), network, postprocessing=to_masks,
    key_val_metric={"val_mean_dice": MeanDice(output_transform=from_engine(["pred", "label"]))},
    val_handlers=[StatsHandler(iteration_log=False)],
)  # fmt: skip
training = DataLoader(Dataset(pairs[:200]), batch_size=20, shuffle=True)
SupervisedTrainer(
    device, 25, training, network, torch.optim.Adam(network.parameters(), 3e-3),
    DiceCELoss(sigmoid=True), train_handlers=[ValidationHandler(1, evaluator), StatsHandler()],
).run()  # fmt: skip
