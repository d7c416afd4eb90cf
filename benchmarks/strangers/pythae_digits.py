"""Pythae's pipeline: a beta-VAE of scikit-learn's digits, its learning rate lowered on a plateau."""

import sys

import torch
from pythae.models import BetaVAE, BetaVAEConfig
from pythae.pipelines import TrainingPipeline
from pythae.trainers import BaseTrainerConfig
from sklearn.datasets import load_digits

PACKAGE = "pythae"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

images = torch.tensor(load_digits().images / 16).float()[:, None]
images = torch.nn.functional.interpolate(images, scale_factor=3, mode="bilinear")
torch.manual_seed(0)
config = BaseTrainerConfig(
    output_dir=sys.argv[1],
    num_epochs=24,
    learning_rate=1e-3,
    per_device_train_batch_size=64,
    per_device_eval_batch_size=64,
    optimizer_cls="AdamW",
    optimizer_params={"weight_decay": 0.01},
    scheduler_cls="ReduceLROnPlateau",
    scheduler_params={"patience": 3, "factor": 0.5},
    steps_saving=6,
    seed=0,
    no_cuda=True,
)
model = BetaVAE(BetaVAEConfig(input_dim=(1, 24, 24), latent_dim=12, beta=0.5))
TrainingPipeline(training_config=config, model=model)(train_data=images[:1500], eval_data=images[1500:])
