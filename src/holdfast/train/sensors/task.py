"""Sensor arrays as a task of the loop: data, model, loss by objective, evaluation, and what is written at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.data.predictions import PredictionWriter
from holdfast.train.devices import Place
from holdfast.train.sensors.dataset import STREAMS, SensorData
from holdfast.train.sensors.evaluate import Evaluator
from holdfast.train.sensors.losses import beta_words, fill_loss, hidden_channels, target_losses
from holdfast.train.sensors.model import FILLED, SensorModel
from holdfast.train.sensors.opening import open_events
from holdfast.train.sensors.pictures import report_of
from holdfast.train.sensors.predictions import writer_of
from holdfast.train.sensors.pretrained import load_pretrained, same_preprocessing, source_of
from holdfast.train.settings import SensorsSettings, platform_defaults
from holdfast.train.task import Batch, Evaluation

MODEL = "model.pt"  # the best weights and the array, in the run's folder


class SensorsTask:
    """Masked auto-encoder, regression, or inpainting."""

    metric = "val_loss"

    def __init__(self, settings: SensorsSettings, place: Place) -> None:
        opened = open_events(settings, same_preprocessing(settings))
        self.settings = opened.settings(settings)
        self.lr, self.array, self.targets = settings.lr0, opened.array, opened.targets
        self._place, self._said_weights, self._warned = place, False, set[str]()
        self._train = SensorData(opened.files, opened.train, opened.array, opened.targets)
        self._train.whole_batches = settings.compile != "none"
        self._val = SensorData(opened.files, opened.val, opened.array, opened.targets)
        self._folder: Path | None = None
        self._epoch: int | None = None  # that is trained; None once it is evaluated
        self._say(f"array: {self._description()}")
        for line in (*opened.notes, *self._machine_notes()):
            self._say(line)

    def _say(self, line: str) -> None:
        if self._place.is_first:
            print(f"holdfast: {line}", flush=True)

    def _description(self) -> str:
        faces = ", ".join(f"{face.name} ({face.description})" for face in self.array.faces)
        channels = ", ".join(f"{channel.name} − {channel.offset:.4g}, / {channel.scale:.4g}" for channel in self.array.channels)
        return f"{self.array.sensors} sensors on {faces}; {channels}"

    def _machine_notes(self) -> list[str]:
        """What was chosen for this machine, and what slows it down."""
        machine, notes, workers = platform_defaults(), [], self.settings.workers
        if machine["workers"] == 1 and workers == 1:
            notes.append(f"on ARM: {workers} loader worker with {self.settings.num_threads} threads, and small chunks")
        if workers and STREAMS % workers:
            notes.append(f"with {workers} workers each chunk is read {workers} times: 1, 2, 4 or 8 read it once")
        return notes

    def begin_run(self, folder: Path) -> None:
        """Predictions are written into the run's folder."""
        self._folder = folder

    def train_data(self) -> SensorData:
        """The training events."""
        return self._train

    def val_data(self) -> SensorData:
        """The validation events."""
        return self._val

    def collate(self, samples: Any) -> Batch:
        """A batch comes from the data set as one; single events are put together."""
        return samples if isinstance(samples, dict) else torch.utils.data.default_collate(samples)

    def model(self) -> SensorModel:
        """The model; where its weights come from is printed once."""
        model = SensorModel(self.array, self.targets, width=self.settings.width, depth=self.settings.depth)
        source = source_of(self.settings)
        source_text = load_pretrained(model, source) if source is not None else "none: every layer is initialised at random"
        if not self._said_weights:
            self._said_weights = True
            self._say(f"weights: {source_text}")
        return model

    def begin_epoch(self, _: nn.Module, epoch: int) -> bool:
        """All of the model is trained from the start."""
        self._epoch = epoch
        return False

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The mean loss of an event."""
        if self.targets:
            losses = target_losses(model(batch["values"]), batch["targets"], self.targets)
            return torch.stack([target.weight * some.mean() for target, some in zip(self.targets, losses, strict=True)]).sum()
        hidden = self.hide(batch["values"])
        return fill_loss(model(batch["values"], hidden), hidden, self.settings.loss_fn, self.settings.loss_beta).mean()

    def hide(self, values: torch.Tensor, index: torch.Tensor | None = None) -> torch.Tensor:
        """The channels that the model must not see: at random, or always the same for an event."""
        chosen = self.settings
        valid = values.isfinite()
        for place, channel in enumerate(self.array.channels):
            if channel.invalid is not None:
                valid[:, place] &= values[:, place] != channel.invalid
        return hidden_channels(valid, chosen.mask_ratio if chosen.objective == "mae" else chosen.dead_fraction, index)

    def loss_weight(self, batch: Batch) -> float:
        """The number of events: the loss is their mean."""
        return float(len(batch["index"]))

    def evaluate(self, model: nn.Module, batches: Iterable[Batch], place: Place) -> Evaluation:
        """The metrics over the events of all ranks; predictions are written as they are made."""
        assert isinstance(model, SensorModel)
        evaluator = Evaluator(self.array, self.targets)
        epoch, self._epoch = self._epoch, None
        with self._writer(epoch) as writer:
            for batch in batches:
                self._evaluate(model, batch, evaluator, writer)
        result = Evaluator.merged(place.gather(evaluator))
        self._warn_about_beta(result, is_final=epoch is None)
        return Evaluation(metrics=result.metrics(), details=result)

    def _evaluate(self, model: SensorModel, batch: Batch, evaluator: Evaluator, writer: PredictionWriter | None) -> None:
        columns: dict[str, Any] = {"event": batch["index"]}
        if self.targets:
            made, first = evaluator.add_targets(batch, model(batch["values"])), 0
            for target in self.targets:
                part = slice(first, first + target.size) if target.size > 1 else first
                columns |= {target.name: batch["targets"][:, part], f"{target.name}_predicted": made[:, part]}
                first += target.size
        else:
            hidden = self.hide(batch["values"], batch["index"])
            outputs = model(batch["values"], hidden)
            loss = fill_loss(outputs, hidden, self.settings.loss_fn, self.settings.loss_beta)
            raw = model.normalise.invert(outputs[FILLED].float()).cpu().numpy()
            evaluator.add_filled(batch, outputs, hidden, loss, raw)
            columns |= {channel.name: raw[:, place] for place, channel in enumerate(self.array.channels)}
        if writer is not None:
            writer.write(**columns)

    def _writer(self, epoch: int | None) -> contextlib.AbstractContextManager[PredictionWriter | None]:
        """Writes the predictions of the best weights (without an epoch), and of every so many epochs."""
        chosen, every = self.settings.save_predictions, self.settings.save_interval
        if chosen == "none" or self._folder is None or (epoch is not None and (not every or (epoch + 1) % every)):
            return contextlib.nullcontext()
        name = "best" if epoch is None else f"epoch-{epoch + 1:04d}"
        return writer_of(chosen, self._folder / "predictions" / name)

    def _warn_about_beta(self, result: Evaluator, *, is_final: bool) -> None:
        for target in self.targets:
            advice = beta_words(target, result.errors[target.name].quantile(0.5), is_final=is_final)
            if advice is not None and target.name not in self._warned:
                self._warned.add(target.name)
                self._say(f"warning: {advice}")

    def finish(self, model: nn.Module, evaluation: Evaluation, folder: Path) -> dict[str, Any]:
        """Write the model and the pictures."""
        assert isinstance(model, SensorModel)
        weights = {name: value.cpu() for name, value in model.state_dict().items()}
        described = {name: getattr(self.settings, name) for name in ("array", "targets", "objective", "width", "depth")}
        sizes = {target.name: target.size for target in self.targets}
        torch.save({"settings": described, "sizes": sizes, "state_dict": weights}, folder / MODEL)
        return report_of(model, evaluation.details, self, folder)


TASK = SensorsTask
