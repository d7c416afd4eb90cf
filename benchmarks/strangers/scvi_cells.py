"""scvi-tools' SCVI: an autoencoder learns the gene counts of made-up cells from three laboratories; the best is saved."""

import re
import sys
from pathlib import Path

import numpy as np
import scvi
from anndata import AnnData
from sklearn.neighbors import KNeighborsClassifier

PACKAGE = "scvi"
PIP = "scvi-tools"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
random, genes, kinds, epochs = np.random.default_rng(0), 150, 8, 30
usual = random.gamma(0.6, 1.5, genes)
markers = np.exp(0.8 * random.normal(size=(kinds, genes)) * (random.random((kinds, genes)) < 0.5))
laboratories = np.exp(0.4 * random.normal(size=(3, genes)))


def cells(count):
    """Counts of molecules, of which each laboratory finds some better than others, and more in larger cells."""
    kind, laboratory = random.integers(kinds, size=count), random.integers(3, size=count)
    rates = usual * markers[kind] * laboratories[laboratory]
    rates *= random.lognormal(5, 0.4, (count, 1)) / rates.sum(1, keepdims=True)
    counts = random.poisson(rates * random.gamma(4, 1 / 4, rates.shape)).astype(np.float32)
    return AnnData(counts, obs={"kind": kind, "laboratory": laboratory.astype(str)})


train, test = cells(3000), cells(600)
for part in (train, test):
    part.obs_names = [f"cell {number}" for number in range(len(part))]
    scvi.model.SCVI.setup_anndata(part, batch_key="laboratory")
scvi.settings.seed = 0
saved = {}  # by how many epochs it has seen; each start counts anew, in a folder named after those before
for path in folder.glob("after */epoch=*/model.pt"):
    before, epoch = re.search(r"after (\d+)/epoch=(\d+)", path.as_posix()).groups()
    saved[int(before) + int(epoch) + 1] = path.parent
done = max(saved, default=0)
model = scvi.model.SCVI.load(saved[done], train, accelerator="cpu") if saved else scvi.model.SCVI(train, n_hidden=64, n_latent=8)
if done < epochs:
    model.train(
        epochs - done, accelerator="cpu", batch_size=128, early_stopping=True, early_stopping_patience=20,
        plan_kwargs={"lr": 2e-3, "n_epochs_kl_warmup": None},
        callbacks=[scvi.train.SaveCheckpoint(folder / f"after {done}", monitor="elbo_validation", load_best_on_end=True)],
    )  # fmt: skip
    losses = [*model.history["elbo_validation"].iloc[:, 0]]
    print(f"validation ELBO {losses[0]:.2f} at first, {losses[-1]:.2f} at last, {min(losses):.2f} at best")
model.save(folder / "model", overwrite=True)
neighbours = KNeighborsClassifier(15).fit(model.get_latent_representation(), train.obs["kind"])
accuracy = neighbours.score(model.get_latent_representation(test), test.obs["kind"])
print(f"test error of reconstruction {float(model.get_reconstruction_error(test)['reconstruction_loss']):.2f}")
print(f"test accuracy {accuracy:.4f}")
