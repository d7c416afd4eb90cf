"""The training loop of every task, from top to bottom.

    for epoch: for batch: forward, backward -> (every `accumulate` batches) clip, update, schedule, average
               evaluate the averaged weights -> metrics.csv -> checkpoint -> stop early?
    load the best weights -> evaluate -> pictures, report

Holdfast is used here as anybody may use it: `holdfast.watch`, `run.step` (splits a batch that does not fit), `run.batches`
(position in the data), `run.save`, `run.restore`, `run.log`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import holdfast
from holdfast.checkpoints.write import best_checkpoint
from holdfast.errors import DiskFull, UsageError
from holdfast.train.devices import Place, to_device, without_sync
from holdfast.train.optimize import Ema, Precision, Schedule, make_optimizer, trained_parameters
from holdfast.train.progress import Progress
from holdfast.train.report import MetricsTable, write_report
from holdfast.train.settings import TrainSettings
from holdfast.train.task import Batch, Evaluation, Task
from holdfast.units import size


class Training:
    """One training in this process: everything that exists before the first batch."""

    def __init__(self, task: Task, settings: TrainSettings, place: Place) -> None:
        holdfast.seed(settings.seed, deterministic=False)  # all ranks start with the same weights
        self.task, self.settings, self.place = task, settings, place
        self.model = task.model().to(place.device)
        self.ema = Ema(self.model, settings.ema) if settings.ema else None
        self._join()
        if self.ema is not None and settings.fsdp:
            place.join(self.ema.module, fsdp=True)
        self.optimizer = make_optimizer(self.model, settings, settings.lr0 or task.lr)
        self.precision = Precision(settings.half, place.device)
        self.loader, self.sampler = self._train_loader()
        self.val_loader = self._val_loader()
        self.schedule = Schedule(self.optimizer, settings, -(-len(self.loader) // settings.accumulate))

    def _join(self) -> None:
        """The model as all ranks train it together, compiled where that is wanted."""
        self._joined: Any = None  # DDP's hooks are gone before new ones are made
        self._forward: Any = None
        self._joined = self._forward = self.place.join(self.model, fsdp=self.settings.fsdp)
        if self.settings.compile != "none":
            self._forward = torch.compile(self._joined, mode=self.settings.compile)

    def fit(self, resume_from: Path | None = None) -> dict[str, float]:
        """Train, and return the metrics of the best weights."""
        settings = self.settings
        with holdfast.watch(self.model, self.optimizer, name=settings.name or None, folder=settings.project) as run:
            if run.attempt == 1:
                self._check_disk(run.folder)
            run.settings(task=settings.TASK, **settings.as_dict())
            run.keep(every_epochs=settings.save_period or None, best=self.task.metric)
            if self.ema is not None:
                run.ema(self.ema)
            if self.place.is_first:
                settings.write(run.folder / "settings.yaml")
            if hasattr(self.task, "begin_run"):  # of a task that writes while it is evaluated
                self.task.begin_run(run.folder)
            holdfast.seed(settings.seed + self.place.rank, deterministic=False)
            restored = self._restore(run, resume_from)
            first = (restored.epoch or 0) if restored is not None else 0
            table = self._table(run, restored)
            if self.place.is_first:
                self._print_settings(run.folder)
            progress = Progress(settings.epochs, len(self.loader), shown=self.place.is_first)
            if restored is not None:
                progress.say(f"resumed from step {restored.step:,} in epoch {first + 1} ({shown_path(restored.path)})")
            step = run.step(self._loss, scaler=self.precision.scaler, weight=lambda batch, _: self.task.loss_weight(batch))
            for epoch in range(first, settings.epochs):
                loss = self._epoch(run, step, epoch, progress)
                metrics: dict[str, Any] = self._evaluate(epoch, progress).metrics
                run.log(split="val", **{name: metrics[name] for name in metrics if "/" not in name})  # one class alone is noise
                lr, seconds = self.optimizer.param_groups[0]["lr"], progress.epoch_seconds()
                step_count = self.schedule.last_epoch
                row = {"epoch": epoch + 1, "step": step_count, "train_loss": loss, **metrics, "lr": lr, "seconds": seconds}
                table.add(row | ({"grad_norm_max": float(self._norm)} if settings.max_grad_norm else {}))
                is_over = epoch + 1 == settings.epochs or self._is_exhausted(table)
                is_best = table.best(self.task.metric) is table.rows[-1]
                run.save(metrics=metrics, wait=is_over, skip_if_busy=not (is_over or is_best))  # slower than an epoch
                progress.epoch_done(epoch, loss, metrics, best=table.best(self.task.metric))
                if is_over:
                    break
            progress.close()
            return self._finish(run, table)

    def _epoch(self, run: holdfast.Run, step: Callable[..., torch.Tensor], epoch: int, progress: Progress) -> float:
        """One pass over the training data; the mean loss of its updates."""
        self.sampler.set_epoch(epoch)
        if hasattr(self.loader.dataset, "set_epoch"):
            self.loader.dataset.set_epoch(epoch)
        self.model.train()
        if self.task.begin_epoch(self.model, epoch) and self.place.world_size > 1:
            self._join()  # DDP exchanges the gradients of those parameters that were trained when it was made
        fast = getattr(self.loader.dataset, "fast_forward", False)  # a sample depends on seed, epoch and index only
        batches, count, accumulate = run.batches(self.loader, fast=fast), len(self.loader), self.settings.accumulate
        self._norm = torch.zeros((), device=self.place.device)  # the largest gradient norm of this epoch, before clipping
        total, updates, last_save = torch.zeros((), device=self.place.device), 0, time.monotonic()
        loss = torch.zeros_like(total)
        for index, batch in enumerate(batches, batches.done):
            group = min(accumulate, count - index // accumulate * accumulate)  # batches of this update
            is_last = (index + 1) % accumulate == 0 or index + 1 == count
            with without_sync(self._joined, waits=not is_last):
                loss = loss + step(to_device(batch, self.place.device), 1.0 / group)
            if not is_last:
                continue
            self._update()
            total, updates, loss = total + loss, updates + 1, torch.zeros_like(total)
            progress.step(epoch, index + 1, total, updates)
            if self._save_is_due(last_save) and index + 1 < count:
                run.save()
                last_save = time.monotonic()
        means: list[float] = self.place.gather(float(total) / max(updates, 1))
        return sum(means) / len(means)

    def _loss(self, batch: Batch, fraction: float) -> torch.Tensor:
        """The loss of one batch, as its part of an update."""
        with self.precision.autocast():
            try:
                return self.task.loss(self._forward, batch) * fraction
            except torch._dynamo.exc.TorchDynamoException as error:  # raised by compiling only
                reason = " ".join(str(error).split())[:200]
                print(f"holdfast: torch.compile failed, training continues without it: {reason}", flush=True)
                self._forward = self._joined
                return self.task.loss(self._forward, batch) * fraction

    def _update(self) -> None:
        scaler = self.precision.scaler
        if self.settings.max_grad_norm:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            norm = nn.utils.clip_grad_norm_(list(trained_parameters(self.optimizer)), self.settings.max_grad_norm)
            self._norm = torch.maximum(self._norm, getattr(norm, "full_tensor", lambda: norm)().detach())  # FSDP2's is a DTensor
        if scaler is not None:
            scaler.step(self.optimizer)
            scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.schedule.step()
        if self.ema is not None:
            self.ema.update(self.model)

    def _save_is_due(self, last: float) -> bool:
        """Whether the minutes between two saves are over: the first rank's clock decides for all."""
        if not self.settings.save_minutes:
            return False
        due = time.monotonic() - last > 60 * self.settings.save_minutes
        return bool(self.place.gather(due)[0]) if self.place.world_size > 1 else due

    def _evaluate(self, epoch: int, progress: Progress) -> Evaluation:
        model = self.ema.module if self.ema is not None else self.model
        model.eval()
        progress.evaluating(epoch)
        with torch.no_grad(), self.precision.autocast():
            batches = (to_device(batch, self.place.device) for batch in self.val_loader)
            return self.task.evaluate(model, batches, self.place)

    def _is_exhausted(self, table: MetricsTable) -> bool:
        """Whether the metric has not improved for `patience` epochs of the last stage."""
        best, patience = table.best(self.task.metric), self.settings.patience
        before = self.settings.epochs - self.settings.stages[-1].epochs
        if not patience or best is None or table.rows[-1]["epoch"] - max(best["epoch"], before) < patience:
            return False
        if self.place.is_first:
            value = f"{self.task.metric} {best[self.task.metric]:.4g} at epoch {best['epoch']}"
            print(f"holdfast: stopped early, no improvement for {patience} epochs (best: {value})", flush=True)
        return True

    def _finish(self, run: holdfast.Run, table: MetricsTable) -> dict[str, float]:
        """Load the best weights, evaluate them, and write pictures, model and report."""
        best = best_checkpoint(run.folder / "checkpoints")
        model = self.ema.module if self.ema is not None else self.model
        if best is not None and not self.settings.fsdp:
            holdfast.load(model, best, which="ema" if self.ema is not None else "model")
        progress = Progress(self.settings.epochs, 1, shown=False)
        evaluation = self._evaluate(self.settings.epochs, progress)
        if self.place.is_first:
            shown = self.task.finish(model, evaluation, run.folder)
            write_report(run.folder, self.settings.as_dict(), table, evaluation.metrics, shown, metric=self.task.metric)
            best_row, metric = table.best(self.task.metric), self.task.metric
            reached = f"best {metric} {best_row[metric]:.4g} (epoch {best_row['epoch']}); " if best_row is not None else ""
            print(f"holdfast: {reached}report: {shown_path(run.folder / 'report.html')}", flush=True)
        return evaluation.metrics

    def _check_disk(self, folder: Path) -> None:
        """Refuse to train where two checkpoints do not fit: a new one is written before the old one goes."""
        copies = 1 + (self.ema is not None) + (2 if self.settings.optimizer == "adamw" else 1)  # of the weights
        need = copies * sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())
        if (free := shutil.disk_usage(folder).free) < 2 * need:
            problem = f"{shown_path(folder)} has {size(free)} free, and two checkpoints take {size(2 * need)}."
            raise DiskFull(problem, fix="free some space, or --project with a folder on a larger disk")

    def _print_settings(self, folder: Path) -> None:
        settings, lr = self.settings, " then ".join(f"{stage.lr or self.task.lr:g}" for stage in self.settings.stages)
        samples = f"{len(self.loader.dataset):,} training and {len(self.val_loader.dataset):,} validation samples"  # type: ignore[arg-type]
        batch = f"batch {settings.batch}" + (f" × {settings.accumulate}" if settings.accumulate > 1 else "")
        device = f"{self.place.world_size} × {self.place.device.type}" if self.place.world_size > 1 else str(self.place.device)
        precision = settings.half if settings.half != "none" else "float32"
        epochs = "1 epoch" if settings.epochs == 1 else f"{settings.epochs} epochs"
        print(f"holdfast: {samples}; {epochs}, {batch}, learning rate {lr}, {precision}, {device}")
        print(f"holdfast: all settings: {shown_path(folder / 'settings.yaml')}", flush=True)

    def _restore(self, run: holdfast.Run, resume_from: Path | None) -> Any:
        """A restarted process continues this run. A resumed run gets the other's newest and best checkpoints as its first."""
        restored = run.restore() if run.attempt > 1 else None
        if restored is not None or resume_from is None:
            return restored
        restored = run.restore(resume_from)
        if restored is not None and self.place.is_first:
            best = best_checkpoint(restored.path.parent)
            for path in (best, restored.path) if best is not None and best.name < restored.path.name else (restored.path,):
                _copy(path, run.folder / "checkpoints")
        return restored

    def _table(self, run: holdfast.Run, restored: Any) -> MetricsTable:
        """The table of all epochs; the earlier ones come from the run that is resumed."""
        if restored is None:
            return MetricsTable(run.folder / "metrics.csv", writes=self.place.is_first)
        earlier = restored.path.parent.parent / "metrics.csv"
        return MetricsTable(
            run.folder / "metrics.csv", writes=self.place.is_first, earlier=earlier, until_epoch=restored.epoch or 0
        )

    def _train_loader(self) -> tuple[DataLoader[Any], DistributedSampler[Any]]:
        settings, place, data = self.settings, self.place, self.task.train_data()
        samples = len(data)  # type: ignore[arg-type]
        if settings.batch % place.world_size:
            fix = f"--batch-size {settings.batch // place.world_size * place.world_size or place.world_size}"
            raise UsageError(f"a batch of {settings.batch} does not divide over {place.world_size} devices.", fix=fix)
        if samples < settings.batch:
            problem = f"a batch of {settings.batch} is larger than the training data ({samples} samples)."
            raise UsageError(problem, fix=f"--batch-size {samples}")
        if hasattr(data, "sampler"):  # data that lies in chunks has an order of its own
            sampler = data.sampler(settings.batch, place.world_size, place.rank, seed=settings.seed)
        else:
            sampler = DistributedSampler(data, place.world_size, place.rank, seed=settings.seed)
        return self._loader(data, settings.batch // place.world_size, sampler), sampler

    def _val_loader(self) -> DataLoader[Any]:
        data, place = self.task.val_data(), self.place
        mine: Any = range(place.rank, len(data), place.world_size)  # type: ignore[arg-type]  # without repeats, unlike DistributedSampler
        if hasattr(data, "sampler"):
            mine = data.sampler(self.settings.batch, place.world_size, place.rank, shuffle=False)
        return self._loader(data, max(1, self.settings.batch // place.world_size), mine)

    def _loader(self, data: Any, batch_size: int, sampler: Any) -> DataLoader[Any]:
        return DataLoader(
            data,
            batch_size=batch_size,
            sampler=sampler,
            num_workers=self.settings.workers,
            collate_fn=self.task.collate,
            pin_memory=self.place.device.type == "cuda",
            generator=torch.Generator().manual_seed(self.settings.seed + self.place.rank),
        )


def _copy(checkpoint: Path, folder: Path) -> None:
    """Copy a checkpoint into another run, where it counts as new; it gets its name once it is whole."""
    if checkpoint.parent != folder:
        part = folder / "copy.part"
        shutil.copytree(checkpoint, part, dirs_exist_ok=True)
        part.touch()
        part.rename(folder / checkpoint.name)


def shown_path(path: Path) -> Path:
    """A path as short as it can be typed from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
