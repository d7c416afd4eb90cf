"""Keras 3 on torch: `model.fit` on scikit-learn's digits."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
from sklearn.datasets import load_digits

PACKAGE = "keras"
HALF = "build"

keras.utils.set_random_seed(0)
images, labels = load_digits(return_X_y=True)
layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10, activation="softmax")]
model = keras.Sequential([keras.Input((64,)), *layers])
model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(images / 16, labels, batch_size=64, epochs=12, validation_split=0.2, verbose=2)
