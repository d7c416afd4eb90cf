"""pytorch-widedeep's Trainer: a wide and a deep part that tell from simulated census records who earns much."""

import sys

import numpy as np
import pandas as pd
import torch
from pytorch_widedeep import Trainer
from pytorch_widedeep.callbacks import EarlyStopping, ModelCheckpoint
from pytorch_widedeep.metrics import Accuracy
from pytorch_widedeep.models import TabMlp, Wide, WideDeep
from pytorch_widedeep.preprocessing import TabPreprocessor, WidePreprocessor

PACKAGE = "pytorch-widedeep"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

random, count = np.random.default_rng(0), 10_000
people = pd.DataFrame({"work": random.choice(list("abcd"), count), "school": random.choice(list("abcde"), count)})
people["region"] = random.integers(0, 30, count).astype(str)
people["age"], people["hours"] = random.integers(17, 80, count), random.normal(39, 9, count)
score = people["school"].map(ord) - 0.004 * (people["age"] - 50) ** 2 + 0.08 * (people["hours"] - 39) * (people["work"] != "a")
score += people["region"].astype(int) % 7 / 2 + random.normal(0, 0.7, count)
people["rich"] = (score > score.median()).astype(int)
training, test = people[:8500], people[8500:]

torch.manual_seed(0)
categories, numbers = ["work", "school", "region"], ["age", "hours"]
for_wide = WidePreprocessor(wide_cols=categories, crossed_cols=[("school", "work")])
for_deep = TabPreprocessor(cat_embed_cols=categories, continuous_cols=numbers, scale=True)
wide_inputs, deep_inputs = for_wide.fit_transform(training), for_deep.fit_transform(training)
columns = {"column_idx": for_deep.column_idx, "cat_embed_input": for_deep.cat_embed_input, "continuous_cols": numbers}
wide = Wide(input_dim=np.unique(wide_inputs).shape[0], pred_dim=1)
model = WideDeep(wide=wide, deeptabular=TabMlp(**columns, mlp_hidden_dims=[512, 256]))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
callbacks = [EarlyStopping(patience=8), ModelCheckpoint(filepath=f"{sys.argv[1]}/weights", save_best_only=True, max_save=2)]
habits = {"callbacks": callbacks, "metrics": [Accuracy], "num_workers": 0, "seed": 0}
trainer = Trainer(model, objective="binary", optimizers=optimizer, lr_schedulers=schedule, **habits)
trainer.fit(X_wide=wide_inputs, X_tab=deep_inputs, target=training["rich"].to_numpy(), n_epochs=14, batch_size=256, val_split=0.1)
predicted = trainer.predict(X_wide=for_wide.transform(test), X_tab=for_deep.transform(test))
print(f"accuracy on held-out records {(predicted == test['rich'].to_numpy()).mean():.3f}")
