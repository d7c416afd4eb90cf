"""pytorch-forecasting's temporal fusion transformer, in Lightning's loop, on noisy waves of its own making."""

import sys

import lightning
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet
from pytorch_forecasting.data.examples import generate_ar_data

PACKAGE = "pytorch-forecasting"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

lightning.seed_everything(0)
waves = generate_ar_data(seasonality=10.0, timesteps=80, n_series=60, seed=0)
names = {"target": "value", "time_idx": "time_idx", "group_ids": ["series"], "time_varying_unknown_reals": ["value"]}
training = TimeSeriesDataSet(waves[waves.time_idx < 60], max_encoder_length=20, max_prediction_length=5, **names)
held_out = TimeSeriesDataSet.from_dataset(training, waves, min_prediction_idx=60)
model = TemporalFusionTransformer.from_dataset(training, learning_rate=0.01, hidden_size=16, attention_head_size=2)
loaders = {
    "train_dataloaders": training.to_dataloader(train=True, batch_size=32),
    "val_dataloaders": held_out.to_dataloader(train=False, batch_size=128),
}
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "gradient_clip_val": 0.1}
lightning.Trainer(max_epochs=4, accelerator="cpu", default_root_dir=sys.argv[1], **quiet).fit(model, **loaders)
