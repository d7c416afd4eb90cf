"""CTGAN's TVAE: an autoencoder learns a table of flats and makes up more of them, from which a forest learns about real ones."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from ctgan import TVAE
from sklearn.ensemble import RandomForestClassifier

PACKAGE = "ctgan"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
random, count = np.random.default_rng(0), 12_000
flats = pd.DataFrame({"district": random.choice(list("abcdefgh"), count, p=np.arange(8, 0, -1) / 36)})
quality = flats["district"].map("hbdfaceg".index).to_numpy()
rooms = random.choice([1, 2, 3, 4, 5], count, p=[0.2, 0.3, 0.3, 0.15, 0.05])
flats["rooms"], old = rooms.astype(str), random.random(count) < 0.1 + 0.1 * quality
flats["built"] = np.where(old, random.normal(1900, 8, count), random.normal(1985, 15, count))
flats["heating"] = np.where(old, random.choice(["coal", "gas"], count), random.choice(["gas", "district"], count))
flats["area"] = 14 + 19 * rooms + random.normal(0, 3 + rooms, count)
flats["rent"] = flats["area"] * (9 + 0.9 * quality) - 90 * (flats["heating"] == "coal") + random.normal(0, 40, count)
known, unseen = flats[:10_000], flats[10_000:]

model = TVAE(batch_size=500, epochs=40, compress_dims=(256, 256), decompress_dims=(256, 256), verbose=True)
model.set_random_state(0)
model.fit(known, discrete_columns=["district", "rooms", "heating"])  # it cannot resume
model.save(str(folder / "tvae.pt"))

made_up = model.sample(4000)
made_up.to_csv(folder / "made_up.csv", index=False)
losses = model.loss_values.groupby("Epoch")["Loss"].mean()
print(f"{len(model.loss_values)} steps, loss {losses.iloc[0]:.3f} at first, {losses.iloc[-1]:.3f} at last")
for name, rows in (("real", known), ("made-up", made_up)):
    forest = RandomForestClassifier(50, random_state=0).fit(rows[["area", "rent", "built"]], rows["rooms"])
    score = forest.score(unseen[["area", "rent", "built"]], unseen["rooms"])
    print(f"rooms of unseen flats, told by a forest that knows {name} ones: {score:.3f} right")
