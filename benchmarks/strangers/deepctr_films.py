"""DeepCTR-Torch's xDeepFM: which films are liked, from hidden tastes of people, films and moments; saved whole every epoch."""

import sys
from pathlib import Path

import numpy as np
import torch
from deepctr_torch.callbacks import ModelCheckpoint
from deepctr_torch.inputs import DenseFeat, SparseFeat, get_feature_names
from deepctr_torch.models import xDeepFM
from sklearn.metrics import roc_auc_score

PACKAGE = "deepctr-torch"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
random, count = np.random.default_rng(0), 24_000
sizes = {"person": 300, "film": 200, "genre": 12, "age": 7, "town": 40, "weekday": 7, "screen": 4, "language": 6}
x = {name: random.integers(size, size=count) for name, size in sizes.items()}
x["genre"] = random.integers(12, size=200)[x["film"]]
x["age"], x["town"] = random.integers(7, size=300)[x["person"]], random.integers(40, size=300)[x["person"]]
hidden = {name: random.normal(size=(size, 3)) for name, size in sizes.items()}
taste = {name: hidden[name][x[name]] for name in sizes}
score = (taste["person"] * taste["film"]).sum(1) + (taste["age"] * taste["genre"]).sum(1)
score += taste["weekday"][:, 0] * taste["screen"][:, 0]
x["length"], x["rating"] = (random.random(count).astype(np.float32) for _ in range(2))
score += 3 * x["rating"] - 2 * np.abs(x["length"] - 0.4) + taste["town"][:, 0] + random.normal(size=count)
y = (score > np.median(score)).astype(np.float32)

columns = [SparseFeat(name, size, embedding_dim=8) for name, size in sizes.items()]
columns += [DenseFeat(name, 1) for name in ("length", "rating")]
names = get_feature_names(columns)
train, test = ({name: x[name][part] for name in names} for part in (slice(0, 20_000), slice(20_000, None)))

torch.manual_seed(0)
saved = sorted(folder.glob("model-*.pt"))
if saved:
    model = torch.load(saved[-1], weights_only=False)  # with its optimizer
else:
    model = xDeepFM(columns, columns, dnn_hidden_units=(256, 128), cin_layer_size=(64, 32), seed=0, device="cpu")
    model.compile("adam", "binary_crossentropy", metrics=["binary_crossentropy", "auc"])
model.fit(
    train, y[:20_000], batch_size=256, epochs=8, initial_epoch=len(saved), verbose=2, validation_split=0.1,
    callbacks=[ModelCheckpoint(str(folder / "model-{epoch:02d}.pt"))],
)  # fmt: skip
print(f"test auc {roc_auc_score(y[20_000:], model.predict(test, 256)):.4f}")
