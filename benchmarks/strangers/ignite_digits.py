"""PyTorch-Ignite's engines: a small convolutional network on scikit-learn's digits, evaluated after each epoch."""

import torch
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Accuracy, Loss
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PACKAGE = "ignite"
PIP = "pytorch-ignite"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

if __name__ == "__main__":
    import sys

    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels))
    training, held_out = torch.utils.data.random_split(data, [1400, len(data) - 1400])
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    network = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(32 * 64, 10))
    optimizer, loss = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9), nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(network, optimizer, loss)
    evaluator = create_supervised_evaluator(network, {"accuracy": Accuracy(), "loss": Loss(loss)})

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(engine: Engine) -> None:
        evaluator.run(DataLoader(held_out, 128))
        metrics = evaluator.state.metrics
        print(f"epoch {engine.state.epoch} val_loss {metrics['loss']:.4f} val_accuracy {metrics['accuracy']:.4f}", flush=True)

    saving = Checkpoint({"model": network, "optimizer": optimizer}, DiskSaver(sys.argv[1], create_dir=True), n_saved=2)
    trainer.add_event_handler(Events.EPOCH_COMPLETED(every=3), saving)
    trainer.run(DataLoader(training, 64, shuffle=True), max_epochs=15)
