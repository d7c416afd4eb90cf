"""`holdfast train segment` and the Unet of segmentation-models-pytorch: same encoder, data, epochs and settings, from scratch.

    python benchmarks/train_segment.py --data ../shared/data/nuclei_dsb2018_256
    python benchmarks/train_segment.py --data DATA --backbone resnet10t --epochs 2 --imgsz 64 --seeds 1 --device cpu   a short try

Each run is a process of its own. The Unet has the optimizer, schedule, augmentation, averaged weights, evaluator and
loss of ours (cross entropy and Dice, at full size only); it trains in a plain loop. Both count with their best epoch. Fails if
our mean IoU is more than a point below the Unet's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import machine, today
from train_detect import in_own_process, train_here

from holdfast.train.settings import SegmentSettings

LEAST = -0.01


def settings_of(arguments: argparse.Namespace, seed: int, project: Path) -> SegmentSettings:
    """What both sides train with."""
    return SegmentSettings(
        data=str(Path(arguments.data).absolute()),
        backbone=arguments.backbone,
        weights="none",
        skip_stage1=True,  # there is nothing to keep in an encoder without pre-training
        epochs=arguments.epochs,
        imgsz=arguments.imgsz,
        batch_size=arguments.batch_size,
        stage2_lr=arguments.lr,
        workers=arguments.workers,
        device=arguments.device,
        cache="ram",
        patience=0,
        save_period=0,
        seed=seed,
        project=str(project),
        name=f"seed-{seed}",
    )


def ours(settings: SegmentSettings) -> list[float]:
    """The IoU of each epoch of `holdfast train segment`."""
    return [float(row["iou"]) for row in train_here(settings)[1]]


def theirs(settings: SegmentSettings) -> list[float]:
    """The IoU of each epoch of the Unet."""
    return [float(value) for value in in_own_process(__file__, "--unet", settings)["ious"]]


def unet(settings: SegmentSettings) -> None:
    """Train the Unet in a plain loop; the IoU of each epoch goes to result.json."""
    import segmentation_models_pytorch as smp
    import torch
    from torch.utils.data import DataLoader

    from holdfast.train.devices import place, to_device
    from holdfast.train.optimize import Ema, Schedule, make_optimizer
    from holdfast.train.segment.model import loss_of
    from holdfast.train.segment.task import SegmentTask

    class Unet(torch.nn.Module):
        """The Unet as our evaluator calls a model: images in, a list of logits out."""

        def __init__(self) -> None:
            super().__init__()
            self.net = smp.Unet(f"tu-{settings.backbone}", encoder_weights=None)

        def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
            return [self.net((images - 0.45) / 0.225)]

    ious = []
    with place(settings.device) as here:
        torch.manual_seed(settings.seed)
        task, model = SegmentTask(settings, here), Unet().to(here.device)
        optimizer = make_optimizer(model, settings, settings.stages[0].lr or task.lr)
        common: dict[str, Any] = {"num_workers": settings.workers, "collate_fn": task.collate, "pin_memory": True}
        loader = DataLoader(task.train_data(), settings.batch, shuffle=True, **common)
        val_loader = DataLoader(task.val_data(), settings.batch, **common)
        schedule, ema = Schedule(optimizer, settings, len(loader)), Ema(model, settings.ema)
        for epoch in range(settings.epochs):
            task.train_data().set_epoch(epoch)
            model.train()
            for batch in (to_device(batch, here.device) for batch in loader):
                loss_of(model(batch["image"].float() / 255), batch["mask"]).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                ema.update(model)
            with torch.no_grad():
                batches = (to_device(batch, here.device) for batch in val_loader)
                ious.append(task.evaluate(ema.module, batches, here).metrics["iou"])
    (Path(settings.project) / "result.json").write_text(json.dumps({"ious": ious}), encoding="utf-8")


def main() -> int:
    """Train, print the table, and say whether the bar is kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", default="../shared/data/nuclei_dsb2018_256")
    parser.add_argument("--backbone", default="resnet34")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--imgsz", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--unet", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.unet is not None:
        unet(SegmentSettings(**json.loads(arguments.unet.read_text(encoding="utf-8"))))
        return 0
    print(f"{today()}: {machine(arguments.jobs)}")
    print(f"{arguments.backbone} from scratch at {arguments.imgsz} px, {arguments.epochs} epochs, batch {arguments.batch_size}")
    print(f"{'seed':>4}  {'':8}  {'best IoU':>8}  {'last epoch':>10}", flush=True)
    best: dict[str, list[float]] = {"holdfast": [], "Unet": []}
    sides = {"holdfast": ours, "Unet": theirs}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [(seed, name) for seed in range(arguments.seeds) for name in sides]
        settings = [settings_of(arguments, seed, Path(folder) / f"{name}-{seed}") for seed, name in runs]
        for (seed, name), ious in zip(runs, pool.map(lambda run, chosen: sides[run[1]](chosen), runs, settings), strict=True):
            best[name].append(max(ious))
            print(f"{seed:>4}  {name:8}  {best[name][-1]:8.4f}  {ious[-1]:10.4f}", flush=True)
    means = {name: statistics.mean(values) for name, values in best.items()}
    difference = means["holdfast"] - means["Unet"]
    print(f"mean IoU: holdfast {means['holdfast']:.4f}, Unet {means['Unet']:.4f}; difference {difference:+.4f}")
    print(f"bar (at most a point below): {'kept' if difference >= LEAST else 'MISSED'}")
    return 0 if difference >= LEAST else 1


if __name__ == "__main__":
    raise SystemExit(main())
