"""DeepChem's TorchModel.fit: three properties of small molecules from their fingerprints, with its validation and checkpoints."""

import itertools
import sys

import deepchem
import numpy as np
import torch
from rdkit import Chem
from rdkit.Chem import Descriptors

PACKAGE = "deepchem"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

np.random.seed(0)
torch.manual_seed(0)
rings = ("c1cc({})ccc1{}", "c1nc({})ccc1{}", "C1CC({})CNC1{}", "c1sc({})cc1{}", "C1C({})CCC1{}", "c1ccc2c({})cccc2c1{}")
groups = [
    "C", "CC", "C(C)C", "O", "OC", "N", "N(C)C", "F", "Cl", "Br",
    "C#N", "C(=O)O", "C(=O)N", "C(F)(F)F", "S(=O)(=O)N", "C(=O)OC", "CCO", "CCN", "OCC", "SC",
]  # fmt: skip
molecules = [ring.format(*pair) for ring in rings for pair in itertools.product(groups, repeat=2)]
parsed = [Chem.MolFromSmiles(molecule) for molecule in molecules]
properties = [[Descriptors.MolLogP(one), Descriptors.TPSA(one), Descriptors.MolMR(one)] for one in parsed]
features = deepchem.feat.CircularFingerprint(size=256).featurize(molecules)
data = deepchem.data.NumpyDataset(features.astype("float32"), np.array(properties), ids=molecules)
training, validation, test = deepchem.splits.RandomSplitter().train_valid_test_split(data, seed=0)
scaler = deepchem.trans.NormalizationTransformer(transform_y=True, dataset=training)
training, validation, test = (scaler.transform(part) for part in (training, validation, test))

model = deepchem.models.MultitaskRegressor(
    n_tasks=3, n_features=256, layer_sizes=[512, 512], dropouts=0.1, batch_size=32, model_dir=sys.argv[1],
    learning_rate=deepchem.models.optimizers.ExponentialDecay(5e-4, 0.9, 100),
)  # fmt: skip
error = deepchem.metrics.Metric(deepchem.metrics.mae_score)
watch = deepchem.models.ValidationCallback(validation, 100, [error], save_dir=f"{sys.argv[1]}/best")
model.fit(training, nb_epoch=12, checkpoint_interval=200, callbacks=[watch])
print(f"mean absolute error {model.evaluate(test, [error])['mae_score']:.3f}")
