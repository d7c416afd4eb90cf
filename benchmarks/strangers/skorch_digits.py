"""skorch's loop: a small network on scikit-learn's digits."""

import torch
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from torch import nn

PACKAGE = "skorch"
HALF = "build"

torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10), nn.Softmax(dim=-1))
classifier = NeuralNetClassifier(network, max_epochs=60, lr=0.1, batch_size=64, optimizer=torch.optim.SGD)
classifier.fit((images / 16).astype("float32"), labels.astype("int64"))
