"""One healthy training by its name: nothing is wrong with it, and nothing in it knows of Holdfast.

    python benchmarks/healthy_trainings/zoo.py NAME [SEED]

Prints one line of JSON: a hash over every bit of the final weights, and how long it took.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time

import classifiers
import generative
import sequences
import torch

TRAININGS = {
    "onecycle": classifiers.onecycle,
    "warm-restarts": classifiers.warm_restarts,
    "large-warmup": classifiers.large_warmup,
    "cyclic": classifiers.cyclic,
    "step-decay": classifiers.step_decay,
    "tiny-batches": classifiers.tiny_batches,
    "batch-of-one": classifiers.batch_of_one,
    "high-momentum": classifiers.high_momentum,
    "adagrad": classifiers.adagrad,
    "rmsprop": classifiers.rmsprop,
    "lbfgs": classifiers.lbfgs,
    "accumulation": classifiers.accumulation,
    "scaler": classifiers.scaler,
    "label-noise": classifiers.label_noise,
    "curriculum": classifiers.curriculum,
    "fine-tuning": classifiers.fine_tuning,
    "unfreezing": classifiers.unfreezing,
    "heavy-dropout": classifiers.heavy_dropout,
    "memorised": classifiers.memorised,
    "rare-class": classifiers.rare_class,
    "gan": generative.gan,
    "vae": generative.vae,
    "autoencoder": generative.autoencoder,
    "denoiser": generative.denoiser,
    "contrastive": generative.contrastive,
    "transformer": sequences.transformer,
    "lstm": sequences.lstm,
    "gru-unclipped": sequences.gru_unclipped,
    "heavy-tails": sequences.heavy_tails,
    "density": sequences.density,
    "reinforce": sequences.reinforce,
    "q-learning": sequences.q_learning,
}


def main(name: str, seed: str = "0") -> None:
    """Train, and say what came out."""
    torch.set_num_threads(1)
    torch.manual_seed(int(seed))
    begun = time.perf_counter()
    model = TRAININGS[name]()
    bits = b"".join(tensor.detach().numpy().tobytes() for tensor in model.state_dict().values())
    seconds = round(time.perf_counter() - begun, 2)
    print(json.dumps({"name": name, "seed": int(seed), "hash": hashlib.sha256(bits).hexdigest()[:16], "seconds": seconds}))


if __name__ == "__main__":
    main(*sys.argv[1:])
