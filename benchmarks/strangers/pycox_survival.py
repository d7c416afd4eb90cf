"""pycox on torchtuples' loop: discrete-time hazards of simulated patients, early stopping included."""

import sys
from pathlib import Path

import numpy as np
import torch
import torchtuples as tt
from pycox.evaluation import EvalSurv
from pycox.models import LogisticHazard
from pycox.simulations import SimStudyNonLinearPH

PACKAGE = "pycox"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

np.random.seed(0)
torch.manual_seed(0)
patients = SimStudyNonLinearPH(h0=0.02).simulate(8000)
covariates, durations, events = (patients[name].astype("float32") for name in ("covs", "durations", "events"))
to_intervals = LogisticHazard.label_transform(30)
targets = to_intervals.fit_transform(durations, events)
training, validation, test = slice(0, 6000), slice(6000, 7000), slice(7000, 8000)

network = tt.practical.MLPVanilla(3, [384, 384, 384], to_intervals.out_features, batch_norm=True, dropout=0.1)
model = LogisticHazard(network, tt.optim.AdamWR(1e-3, decoupled_weight_decay=0.01), duration_index=to_intervals.cuts)
folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
log = model.fit(
    covariates[training], tuple(part[training] for part in targets), batch_size=256, epochs=20,
    callbacks=[tt.callbacks.EarlyStopping(patience=10, file_path=str(folder / "best.pt"), rm_file=False)],
    val_data=(covariates[validation], tuple(part[validation] for part in targets)),
)  # fmt: skip
survival = model.interpolate(10).predict_surv_df(covariates[test])
concordance = EvalSurv(survival, durations[test], events[test], censor_surv="km").concordance_td()
print(f"concordance {concordance:.3f} after {len(log.to_pandas())} epochs")
model.save_net(str(folder / "net.pt"))
