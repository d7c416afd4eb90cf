"""A Keras 3 training on torch; prints a checksum of its weights.

keras_trainer.py [--policy heal] [--epochs N] [--nan-at N] [--lr-at N] [--kill-at N] [--schedule] [--without] [--saves PATH]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--policy", default="observe")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--nan-at", type=int, default=-1, help="batch of each epoch whose inputs are NaN")
parser.add_argument("--lr-at", type=int, default=-1, help="epoch at which the learning rate becomes far too high")
parser.add_argument("--schedule", action="store_true")
parser.add_argument("--kill-at", type=int, default=-1, help="epoch in which the first attempt is killed")
parser.add_argument("--without", action="store_true", help="without the callback")
parser.add_argument("--saves", help="have Keras save after each epoch, and a backup")
options = parser.parse_args()

keras.utils.set_random_seed(0)
inputs = np.random.default_rng(0).normal(size=(160, 8)).astype("float32")
labels = (inputs.sum(1) > 0).astype("int64")
if options.nan_at >= 0:
    inputs[16 * options.nan_at] = np.nan


class Faults(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        if epoch == options.lr_at:
            self.model.optimizer.learning_rate = 100.0

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if self.model.optimizer.iterations == 8 * options.kill_at + 3 and os.environ.get("HOLDFAST_ATTEMPT", "1") == "1":
            os.kill(os.getpid(), signal.SIGKILL)


layers = [keras.layers.Dense(16, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
model = keras.Sequential([keras.Input((8,)), *layers])
rate = keras.optimizers.schedules.ExponentialDecay(1e-2, 10, 0.5) if options.schedule else 1e-2
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.Adam(rate), loss=loss, metrics=["accuracy"])
first = 0
callbacks: list[keras.callbacks.Callback] = [Faults()]
if options.saves:
    callbacks.append(keras.callbacks.ModelCheckpoint(options.saves))
    callbacks.append(keras.callbacks.BackupAndRestore("backup", save_freq=5, delete_checkpoint=False))
if not options.without:
    from holdfast.integrations.keras import HoldfastCallback

    callback = HoldfastCallback(name="keras", policy=options.policy)
    callbacks.append(callback)
    first = callback.resume(model)
history = model.fit(
    inputs[:128], labels[:128], batch_size=16, epochs=options.epochs, initial_epoch=first, verbose=0, callbacks=callbacks,
    validation_data=(inputs[128:], labels[128:]),
)  # fmt: skip
weights = b"".join(weight.tobytes() for weight in model.get_weights())
print(
    json.dumps(
        {
            "step": int(model.optimizer.iterations),
            "epoch": first + len(history.epoch),
            "finite": bool(all(np.isfinite(weight).all() for weight in model.get_weights())),
            "loss": history.history["val_loss"][-1],
            "weights": hashlib.sha256(weights).hexdigest(),
        }
    )
)
