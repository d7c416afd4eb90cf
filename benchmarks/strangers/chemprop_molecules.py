"""Chemprop's MPNN, in Lightning's loop: message passing learns the logP of a thousand molecules of RDKit's copy of the NCI."""

import sys
from pathlib import Path

import numpy as np
from chemprop import data, models, nn
from lightning import pytorch as pl
from rdkit import Chem, RDConfig, RDLogger
from rdkit.Chem.Crippen import MolLogP

PACKAGE = "chemprop"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
pl.seed_everything(0)
RDLogger.DisableLog("rdApp.*")
lines = Path(RDConfig.RDDataDir, "NCI/first_5K.smi").read_text().splitlines()
read = (Chem.MolFromSmiles(line.split()[0]) for line in lines[::3])
molecules = [molecule for molecule in read if molecule and 6 <= molecule.GetNumHeavyAtoms() <= 24][:1300]
points = [data.MoleculeDatapoint(molecule, np.array([MolLogP(molecule)])) for molecule in molecules]
training, validation, test = (data.MoleculeDataset(part) for part in (points[:1000], points[1000:1150], points[1150:]))
scaler = training.normalize_targets()
validation.normalize_targets(scaler)
for part in (training, validation, test):
    part.cache = True

model = models.MPNN(
    nn.BondMessagePassing(d_h=96, depth=3), nn.NormAggregation(),
    nn.RegressionFFN(input_dim=96, hidden_dim=96, output_transform=nn.UnscaleTransform.from_standard_scaler(scaler)),
    batch_norm=True, metrics=[nn.metrics.RMSE(), nn.metrics.R2Score()], max_lr=2e-3,
)  # fmt: skip
checkpoints = pl.callbacks.ModelCheckpoint(
    folder / "checkpoints", "best-{epoch}-{val_loss:.3f}", monitor="val_loss", save_last=True
)
last = folder / "checkpoints/last.ckpt"  # of an earlier start, which this one continues
trainer = pl.Trainer(
    max_epochs=20, accelerator="cpu", default_root_dir=folder, logger=pl.loggers.CSVLogger(folder), log_every_n_steps=10,
    gradient_clip_val=1.0, callbacks=[checkpoints],
)  # fmt: skip
trainer.fit(
    model, data.build_dataloader(training, batch_size=32, seed=0), data.build_dataloader(validation, shuffle=False),
    ckpt_path=last if last.exists() else None, weights_only=False,
)  # fmt: skip
loader = data.build_dataloader(test, shuffle=False)
results = trainer.test(models.MPNN.load_from_checkpoint(checkpoints.best_model_path), loader)
print(f"test R2 {results[0]['test/r2']:.4f}")
