"""One small training, drawn at random from a seed; nothing in it knows of Holdfast.

    python benchmarks/population_training.py SEED

Leaves `states.npz` in its folder, for whoever wants to know the truth: the weights at five points of the run, its evaluations,
and the share of its time that it waited for batches.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace as Draw
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

POINTS = 5
_SAMPLES = 25_000  # that a run learns from at most, so that it takes seconds
_OPTIMIZERS: dict[str, tuple[Any, float, dict[str, Any]]] = {  # with a usual learning rate
    "sgd": (torch.optim.SGD, 0.1, {}),
    "momentum": (torch.optim.SGD, 0.03, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, 0.02, {"momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, 2e-3, {}),
    "adamw": (torch.optim.AdamW, 2e-3, {}),
    "rmsprop": (torch.optim.RMSprop, 1e-3, {}),
    "adagrad": (torch.optim.Adagrad, 0.03, {}),
    "nadam": (torch.optim.NAdam, 2e-3, {}),
}
_ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "silu": nn.SiLU, "leaky": nn.LeakyReLU, "elu": nn.ELU}
_SEQUENCES = ("gru", "lstm", "rnn", "transformer")
_NETWORKS = {
    "table": ("mlp", "residual"),
    "regression": ("mlp", "residual"),
    "flags": ("mlp",),  # several answers at once
    "images": ("cnn", "cnn", "mlp"),
    "autoencoder": ("mlp",),
    "text": ("transformer", "gru", "lstm"),
    "series": _SEQUENCES,
}
_HABITS: dict[str, tuple[Any, ...]] = {
    "norm": ("none", "none", "batch", "layer"),
    "activation": ("relu", "relu", *_ACTIVATIONS),
    "dropout": (0.0, 0.0, 0.0, 0.1, 0.3),
    "weight_decay": (0.0, 0.0, 1e-4, 1e-2),
    "schedule": (*["constant"] * 2, "cosine", "onecycle", "steps", "warmup", "plateau", "restarts", "exponential"),
    "batch": (8, 16, 32, 32, 64, 64, 128),
    "accumulate": (*[1] * 8, 2, 4),
    "clip": (0.0, 0.0, 1.0, 5.0),
    "precision": (*["float32"] * 8, "bfloat16", "float16", "float64"),
    "loader": (*["none"] * 3, *["main"] * 6, "workers"),
    "form": ("pair", "pair", "names", "indexed"),  # of a batch
    "evaluate": ("never", "epochs", "epochs", "steps"),
    "held_out_by": ("loader", "loader", "tensor"),
    "save": ("never", "never", "last", "best"),
    "frozen": (*[False] * 24, True),
}


def draw(seed: int) -> Draw:
    """The training of a seed: everything that tells it from others."""
    rng = random.Random(f"population {seed}")
    one = Draw(seed=seed, task=rng.choice(tuple(_NETWORKS)), **{name: rng.choice(values) for name, values in _HABITS.items()})
    one.network, one.optimizer = rng.choice(_NETWORKS[one.task]), rng.choice(tuple(_OPTIMIZERS))
    slow = one.network in _SEQUENCES or one.precision.endswith("16")
    one.depth, one.width = rng.choice((1, 2) if slow else (1, 2, 2, 3, 4)), rng.choice((16, 32) if slow else (16, 32, 64, 96))
    one.lr = float(f"{_OPTIMIZERS[one.optimizer][1] * math.exp(rng.gauss(0.0, 0.6)):.2g}")
    steps = math.exp(rng.uniform(math.log(200), math.log(400 if slow else 1200)))
    one.steps = int(min(steps, max(200, _SAMPLES / (one.batch * one.accumulate))))
    return one


def has(one: Draw) -> set[str]:
    """What a fault may need, by the names that drills use."""
    classes = one.task in ("table", "images", "series", "text")
    found = {
        "layers": True,
        "weights": True,
        "loader": one.loader != "none",
        "workers": one.loader == "workers",
        "several-workers": one.loader == "workers",
        "float-inputs": one.task != "text",
        "labels": classes and one.form != "indexed" and one.loader != "none",
        "evaluation": one.evaluate != "never" and one.held_out_by == "loader",
        "saves": one.save != "never" and one.evaluate != "never",
        "relu": one.activation == "relu" and one.network in ("mlp", "cnn") and one.norm == "none",
        "recurrent": one.network in ("gru", "lstm", "rnn"),
        "half": one.precision == "float16",
    }
    return {name for name, there in found.items() if there}


# Data: made from the seed, with noise, so that some of it cannot be learned. Inputs, targets, how many numbers are given out.


def data(one: Draw) -> Draw:
    """What is learned from and what is held out."""
    rng, make = random.Random(f"data {one.seed}"), torch.Generator().manual_seed(one.seed)
    count, held_out = rng.choice((600, 1200, 2400)), 256
    inputs, targets, out = _TASKS[one.task](rng, make, count + held_out)
    kind = "classes" if not targets.is_floating_point() else "flags" if one.task == "flags" else "numbers"
    return Draw(inputs=inputs[:count], targets=targets[:count], held_out=(inputs[count:], targets[count:]), out=out, kind=kind)


Made = tuple[torch.Tensor, torch.Tensor, int]


def _table(rng: random.Random, make: torch.Generator, count: int) -> Made:
    """Clouds around centres, several to a class, a few labels wrong."""
    size, classes = rng.choice((8, 16, 32)), rng.choice((2, 3, 5, 10, 50, 100))
    centres = torch.randn(classes * rng.choice((1, 2)), size, generator=make)
    chosen = torch.randint(len(centres), (count,), generator=make)
    inputs = centres[chosen] + rng.choice((0.3, 0.6, 0.9)) * torch.randn(count, size, generator=make)
    wrong = torch.rand(count, generator=make) < rng.choice((0.0, 0.0, 0.05))
    return inputs, torch.where(wrong, torch.randint(classes, (count,), generator=make), chosen % classes), classes


def _regression(rng: random.Random, make: torch.Generator, count: int) -> Made:
    size, out = rng.choice((4, 8, 16)), rng.choice((1, 1, 3))
    inputs = torch.randn(count, size, generator=make)
    hidden = torch.tanh(inputs @ torch.randn(size, 16, generator=make) / math.sqrt(size))
    clean = hidden @ torch.randn(16, out, generator=make) / 4
    return inputs, clean + rng.choice((0.0, 0.05, 0.2)) * torch.randn(count, out, generator=make), out


def _flags(rng: random.Random, make: torch.Generator, count: int) -> Made:
    inputs, targets, out = _regression(rng, make, count)
    return inputs, (targets > rng.choice((0.0, 0.5))).float(), out


def _images(rng: random.Random, make: torch.Generator, count: int) -> Made:
    size, channels, classes = rng.choice((8, 12)), rng.choice((1, 3)), rng.choice((2, 5, 10))
    labels = torch.randint(classes, (count,), generator=make)
    inputs = torch.randn(classes, channels, size, size, generator=make)[labels]
    inputs = inputs + rng.choice((0.5, 1.0, 1.5)) * torch.randn(count, channels, size, size, generator=make)
    return (inputs if rng.random() < 0.7 else torch.sigmoid(inputs)), labels, classes


def _autoencoder(rng: random.Random, make: torch.Generator, count: int) -> Made:
    size = rng.choice((32, 64))
    inputs = torch.tanh(torch.randn(count, 4, generator=make) @ torch.randn(4, size, generator=make))
    inputs = inputs + 0.05 * torch.randn(count, size, generator=make)
    return inputs, inputs, size


def _text(rng: random.Random, make: torch.Generator, count: int) -> Made:
    """A Markov chain: some letters follow others more often."""
    letters, length = rng.choice((12, 30)), rng.choice((12, 24))
    chances = torch.softmax(rng.choice((2.0, 3.0)) * torch.randn(letters, letters, generator=make), 1)
    text = [torch.randint(letters, (count,), generator=make)]
    for _ in range(length):
        text.append(torch.multinomial(chances[text[-1]], 1, generator=make).squeeze(1))
    tokens = torch.stack(text, 1)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), letters


def _series(rng: random.Random, make: torch.Generator, count: int) -> Made:
    """Waves whose frequency is the class."""
    classes, length = rng.choice((2, 4)), rng.choice((16, 32))
    labels = torch.randint(classes, (count,), generator=make)
    phase = 6.28 * torch.rand(count, 1, generator=make)
    wave = torch.sin((labels + 1).unsqueeze(1) * torch.linspace(0, 6.28, length) + phase)
    return (wave + 0.2 * torch.randn(count, length, generator=make)).unsqueeze(2), labels, classes


_TASKS: dict[str, Callable[..., Made]] = {name: globals()[f"_{name}"] for name in _NETWORKS}


# Networks


class Residual(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


class Sequence(nn.Module):
    """Tokens or numbers in order, through a recurrent or an attention network; an answer for each token, or one in all."""

    def __init__(self, one: Draw, made: Draw) -> None:
        super().__init__()
        self.each, self.attends = one.task == "text", one.network == "transformer"
        self.into = nn.Embedding(made.out, one.width) if self.each else nn.Linear(made.inputs.shape[2], one.width)
        if self.attends:
            self.place = nn.Parameter(0.02 * torch.randn(made.inputs.shape[1], one.width))
            layer = nn.TransformerEncoderLayer(one.width, 4, 2 * one.width, one.dropout, batch_first=True, norm_first=True)
            self.core = nn.TransformerEncoder(layer, one.depth, enable_nested_tensor=False)
        else:
            self.core = getattr(nn, one.network.upper())(one.width, one.width, one.depth, batch_first=True)
        self.head = nn.Linear(one.width, made.out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        if self.attends:
            x = x + self.place
            x = self.core(x, nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype) if self.each else None)
        else:
            x = self.core(x)[0]
        return self.head(x) if self.each else self.head(x.mean(1))


def network(one: Draw, made: Draw) -> nn.Module:
    if one.network in _SEQUENCES:
        return Sequence(one, made)
    activation, parts = _ACTIVATIONS[one.activation], []
    if one.network == "cnn":
        for channels in (made.inputs.shape[1], *[one.width] * min(one.depth, 2)):
            parts += [nn.Conv2d(channels, one.width, 3, padding=1), *_norm(one, nn.BatchNorm2d), activation()]
        return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(one.width * 16, made.out))
    parts = [nn.Flatten(), nn.Linear(made.inputs[0].numel(), one.width), activation()]
    for _ in range(one.depth):
        block = [nn.Linear(one.width, one.width), *_norm(one, nn.BatchNorm1d), activation(), nn.Dropout(one.dropout)]
        parts += [Residual(*block)] if one.network == "residual" else block
    return nn.Sequential(*parts, nn.Linear(one.width, made.out))


def _norm(one: Draw, batch: type[nn.Module]) -> list[nn.Module]:
    return {"none": [], "batch": [batch(one.width)], "layer": [nn.GroupNorm(1, one.width)]}[one.norm]


def loss_of(kind: str, output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    if kind == "classes":
        return functional.cross_entropy(output.flatten(0, -2), wanted.flatten())
    return (functional.mse_loss if kind == "numbers" else functional.binary_cross_entropy_with_logits)(output, wanted)


def arrays(model: nn.Module) -> dict[str, Any]:
    """Copies of parameters and buffers, past `state_dict`: that is the script's business with checkpoints."""
    return {name: value.detach().numpy().copy() for name, value in (*model.named_parameters(), *model.named_buffers())}


# The loop


class Samples(Dataset[Any]):
    """Samples in one of the forms that people give them."""

    def __init__(self, inputs: torch.Tensor, targets: torch.Tensor, form: str) -> None:
        self.inputs, self.targets, self.form = inputs, targets, form

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        x, y = self.inputs[index], self.targets[index]
        return {"pair": (x, y), "names": {"input": x, "label": y}, "indexed": (x, y, index)}[self.form]


def schedule_of(one: Draw, optimizer: torch.optim.Optimizer) -> Any:
    makers: dict[str, Callable[[], Any]] = {
        "constant": lambda: None,
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, one.steps),
        "onecycle": lambda: lr_scheduler.OneCycleLR(optimizer, 2 * one.lr, one.steps + 1, cycle_momentum=False),
        "steps": lambda: lr_scheduler.MultiStepLR(optimizer, [int(0.6 * one.steps), int(0.85 * one.steps)], 0.1),
        "warmup": lambda: lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / (0.1 * one.steps))),
        "plateau": lambda: lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=5),
        "restarts": lambda: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, one.steps // 3),
        "exponential": lambda: lr_scheduler.ExponentialLR(optimizer, 0.05 ** (1 / one.steps)),
    }
    return makers[one.schedule]()


def batches(one: Draw, made: Draw) -> Iterator[tuple[Any, bool]]:
    """Batches without end, and whether each is the last of its epoch."""
    workers = {"num_workers": 2, "persistent_workers": True} if one.loader == "workers" else {}
    samples = Samples(made.inputs, made.targets, one.form)
    loader = DataLoader(samples, one.batch, shuffle=True, drop_last=one.norm == "batch", **workers)
    while True:
        drawn = loader if one.loader != "none" else torch.randperm(len(samples)).split(one.batch)[:-1]
        for place, batch in enumerate(drawn):
            yield batch if one.loader != "none" else (made.inputs[batch], made.targets[batch]), place == len(drawn) - 1


class Training:
    """The usual loop, with the habits that were drawn."""

    def __init__(self, one: Draw) -> None:
        torch.manual_seed(one.seed)
        self.draw, self.data, self.dtype = one, data(one), torch.float64 if one.precision == "float64" else torch.float32
        self.model = network(one, self.data).to(self.dtype)
        next(self.model.parameters()).requires_grad_(not one.frozen)
        kind, _, more = _OPTIMIZERS[one.optimizer]
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = kind(trained, lr=one.lr, weight_decay=one.weight_decay, **more)
        self.schedule, self.by_loss = schedule_of(one, self.optimizer), one.schedule == "plateau"
        self.scaler = torch.amp.GradScaler("cpu", enabled=one.precision == "float16")
        self.best, self.waited, self.seconds, self.evaluated = math.inf, 0.0, 0.0, []
        self.states = {f"0 {name}": value for name, value in arrays(self.model).items()}
        samples = Samples(*self.data.held_out, one.form)
        self.held_out = DataLoader(samples, 128) if one.held_out_by == "loader" else [self.data.held_out]

    def loss(self, batch: Any) -> torch.Tensor:
        x, y = (batch["input"], batch["label"]) if isinstance(batch, dict) else batch[:2]
        x, y = (part.to(self.dtype) if part.is_floating_point() else part for part in (x, y))
        with torch.autocast("cpu", getattr(torch, self.draw.precision), enabled=self.draw.precision.endswith("16")):
            output = self.model(x)
        return loss_of(self.data.kind, output.to(self.dtype), y)

    def run(self) -> None:
        one, step, every, apart = self.draw, 0, max(20, self.draw.steps // 12), self.draw.steps // (POINTS - 1)
        drawn = enumerate(batches(one, self.data), 1)
        while True:
            begun = time.perf_counter()
            number, (batch, last) = next(drawn)
            self.waited += time.perf_counter() - begun
            self.model.train()
            loss = self.loss(batch)
            self.scaler.scale(loss / one.accumulate).backward()
            if number % one.accumulate == 0:
                self._update()
            self.seconds += time.perf_counter() - begun
            if number % one.accumulate:
                continue
            step += 1
            if step % apart == 0:
                self.states |= {f"{step // apart} {name}": value for name, value in arrays(self.model).items()}
            if (one.evaluate == "epochs" and last) or (one.evaluate == "steps" and step % every == 0):
                self._evaluate(step)
            elif step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step == one.steps:
                return

    def _update(self) -> None:
        self.scaler.unscale_(self.optimizer)
        if self.draw.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.draw.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.schedule is not None and not self.by_loss:
            self.schedule.step()

    @torch.no_grad()
    def _evaluate(self, step: int) -> None:
        self.model.eval()
        losses = [self.loss(batch).item() for batch in self.held_out]
        loss = sum(losses) / len(losses)
        print(f"step {step} val_loss {loss:.4f}", flush=True)
        if self.by_loss:
            self.schedule.step(loss)
        if self.draw.save == "last" or (self.draw.save == "best" and loss < self.best):
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}, "last.pt")
        self.best = min(self.best, loss)
        self.evaluated.append(loss)


if __name__ == "__main__":
    torch.set_num_threads(1)
    training = Training(draw(int(sys.argv[1])))
    training.run()
    waited = training.waited / training.seconds
    np.savez("states.npz", evaluated=np.array(training.evaluated), waited=np.array(waited), **training.states)
