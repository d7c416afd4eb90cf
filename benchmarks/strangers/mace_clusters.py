"""MACE's own training: an equivariant network learns the forces within shaken clusters of copper and gold from ASE's EMT."""

import sys
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.emt import EMT
from ase.io import read, write
from mace.calculators import MACECalculator
from mace.cli.run_train import run
from mace.tools import build_default_arg_parser

PACKAGE = "mace"
PIP = "mace-torch"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1]).absolute()
folder.mkdir(parents=True, exist_ok=True)
random = np.random.default_rng(0)
corners = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]]) * 1.9


def cluster():
    """An octahedron of both metals, a little larger or smaller, each atom moved at random."""
    places = corners * random.uniform(0.95, 1.1) + random.normal(scale=0.15, size=corners.shape)
    atoms = Atoms(random.choice(["Cu", "Au"], len(corners)), places, calculator=EMT())
    atoms.info["REF_energy"], atoms.arrays["REF_forces"] = atoms.get_potential_energy(), atoms.get_forces()
    atoms.calc = None
    return atoms


for name, count in (("train", 320), ("valid", 60), ("test", 100)):
    write(folder / f"{name}.xyz", [cluster() for _ in range(count)])
run(build_default_arg_parser().parse_args([
    "--name=clusters", f"--work_dir={folder}", "--seed=1", "--device=cpu", "--default_dtype=float32", "--plot=False",
    *(f"--{name}_file={folder / name}.xyz" for name in ("train", "valid", "test")), "--E0s=average", "--error_table=TotalMAE",
    "--model=MACE", "--r_max=5", "--hidden_irreps=16x0e+16x1o", "--max_ell=2", "--correlation=2", "--num_interactions=1",
    "--forces_weight=10", "--batch_size=8", "--lr=0.01", "--scheduler=ExponentialLR", "--lr_scheduler_gamma=0.8",
    "--ema", "--max_num_epochs=16", "--restart_latest",
]))  # fmt: skip

calculator, errors = MACECalculator(model_paths=str(folder / "clusters.model"), device="cpu", default_dtype="float32"), []
for atoms in read(folder / "test.xyz", ":"):
    atoms.calc = calculator
    errors.append(np.abs(atoms.get_forces() - atoms.arrays["REF_forces"]).mean())
print(f"test force error {np.mean(errors):.4f} eV/A")
