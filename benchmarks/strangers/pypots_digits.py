"""PyPOTS' SAITS, which fills in missing values: digits as series of eight rows, a tenth of their pixels missing."""

import sys

import numpy as np
from pygrinder import mcar
from pypots.imputation import SAITS
from pypots.nn.functional import calc_mae
from pypots.utils.random import set_random_seed
from sklearn.datasets import load_digits

PACKAGE = "pypots"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

set_random_seed(0)
whole = np.random.permutation(load_digits().images).astype("float32") / 16
training, validation, test = whole[:1000], whole[1000:1250], whole[1250:1500]
model = SAITS(
    n_steps=8, n_features=8, n_layers=2, d_model=64, n_heads=4, d_k=16, d_v=16, d_ffn=128, dropout=0.1, batch_size=32, epochs=10,
    device="cpu", saving_path=sys.argv[1], model_saving_strategy="better",
)  # fmt: skip
model.fit({"X": mcar(training, 0.1)}, {"X": mcar(validation, 0.1), "X_ori": validation})
broken = mcar(test, 0.1)
error = calc_mae(model.impute({"X": broken}), test, np.isnan(broken))
print(f"mean absolute error {error:.4f}")
