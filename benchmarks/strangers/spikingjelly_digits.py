"""SpikingJelly's classification Trainer: a spiking convolutional network reads scikit-learn's digits, saved after each epoch."""

import argparse
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import RandomSampler, SequentialSampler, TensorDataset

try:
    import torchvision  # noqa: F401
except RuntimeError:  # operator torchvision::nms does not exist: declared, it is never called
    declared = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        declared.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from spikingjelly.activation_based import functional, layer, neuron, surrogate
from spikingjelly.activation_based.examples.common import train_classify
from spikingjelly.logger import logger

PACKAGE = "spikingjelly"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own


class Digits(TensorDataset):
    classes = tuple(range(10))


class Trainer(train_classify.Trainer):
    def load_ImageNet(self, args):
        images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
        order = torch.randperm(len(images))
        images, labels = (images[order] / 16).float().reshape(-1, 1, 8, 8), labels[order]
        train, test = Digits(images[:1400], labels[:1400]), Digits(images[1400:], labels[1400:])
        shuffled = RandomSampler(train, generator=torch.Generator().manual_seed(args.seed))
        return train, test, shuffled, SequentialSampler(test)

    def load_model(self, args, num_classes):  # noqa: ARG002
        def spikes():
            return neuron.LIFNode(surrogate_function=surrogate.ATan(), detach_reset=True)

        net = nn.Sequential(
            layer.Conv2d(1, 32, 3, padding=1, bias=False), layer.BatchNorm2d(32), spikes(), layer.MaxPool2d(2),
            layer.Conv2d(32, 64, 3, padding=1, bias=False), layer.BatchNorm2d(64), spikes(), layer.MaxPool2d(2),
            layer.Flatten(), layer.Linear(64 * 4, 10),
        )  # fmt: skip
        functional.set_step_mode(net, "m")
        return net

    def preprocess_train_sample(self, args, x):  # noqa: ARG002
        return x.unsqueeze(0).expand(4, -1, -1, -1, -1)  # four steps in time

    preprocess_test_sample = preprocess_train_sample

    def process_model_output(self, args, y):  # noqa: ARG002
        return y.mean(0)


logger.enable("spikingjelly")
torch.serialization.add_safe_globals([argparse.Namespace])  # each checkpoint holds the arguments
trainer = Trainer()
options = "--model csnn --device cpu -b 32 --epochs 10 -j 0 --opt adamw --lr 4e-3 --wd 1e-4 --lr-warmup-epochs 2 --seed 0"
options += f" --mixup-alpha 0 --cutmix-alpha 0 --disable-amp --disable-pinmemory --output-dir {sys.argv[1]}"
args = trainer.get_args_parser().parse_args(options.split())
saved = Path(args.output_dir, "pt", trainer.get_tb_logdir_name(args))
args.resume, args.clean = ("latest", False) if (saved / "checkpoint_latest.pth").exists() else (None, True)
trainer.main(args)
print(f"accuracy {torch.load(saved / 'checkpoint_max_test_acc1.pth')['max_test_acc1'] / 100:.4f}")
