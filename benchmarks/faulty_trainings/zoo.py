"""One faulty training by its name: each has one thing wrong with it, and nothing in it knows of Holdfast.

python benchmarks/faulty_trainings/zoo.py NAME [SEED]
"""

from __future__ import annotations

import sys

import learning
import machine
import torch

FAULTS = {**learning.FAULTS, **machine.FAULTS}


def main(name: str, seed: str = "0") -> None:
    """Train to the end."""
    torch.set_num_threads(1)
    torch.manual_seed(int(seed))
    FAULTS[name]()


if __name__ == "__main__":
    main(*sys.argv[1:])
