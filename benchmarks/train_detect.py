"""D-FINE from scratch in our loop and under the Hugging Face Trainer: the same model, data, epochs and settings.

    python benchmarks/train_detect.py --data ../shared/data/bccd/yolo/data.yaml
    python benchmarks/train_detect.py --data data.yaml --epochs 2 --imgsz 64 --seeds 1 --device cpu    a short try
    python benchmarks/train_detect.py --data data.yaml --seeds 0 --turns 6                             the step time alone

Each run is a process of its own. Both sides average their weights in the same way, are evaluated after each epoch by the same
evaluator, and count with their best epoch. Step times come from short runs that alternate, with nothing beside them: a step is
the time between two optimizer steps of one epoch, waiting for data included. Fails if our mean mAP50-95 is more than a point
below the Trainer's, or our step takes over 1.03 times as long.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import machine, today

from holdfast.train.settings import DetectSettings, TrainSettings

LEAST_MAP, MOST_TIME = -0.01, 1.03
WARM = 20  # first steps of a run that do not count


def settings_of(arguments: argparse.Namespace, seed: int, project: Path) -> DetectSettings:
    """What both sides train with."""
    return DetectSettings(
        data=str(Path(arguments.data).absolute()),
        architecture=arguments.architecture,
        weights="none",
        epochs=arguments.epochs,
        imgsz=arguments.imgsz,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        device=arguments.device,
        half=arguments.half,
        augment=arguments.augment,
        cache="ram",
        patience=0,
        save_period=0,
        close_mosaic=max(1, arguments.epochs // 10),
        seed=seed,
        project=str(project),
        name=f"seed-{seed}",
    )


def ours(settings: DetectSettings) -> dict[str, Any]:
    """`holdfast train detect` as a user starts it."""
    run, rows = train_here(settings)
    sql = f"SELECT step_seconds FROM steps WHERE step >= {WARM} AND step_seconds IS NOT NULL ORDER BY step"
    command = [sys.executable, "-m", "holdfast", "query", "-t", str(run), "--json", "--limit", "1000000", sql]
    steps = json.loads(output_of(command))
    return {"maps": [float(row["map"]) for row in rows], "seconds": [_seconds(row) for row in steps]}


def train_here(settings: TrainSettings) -> tuple[Path, list[dict[str, str]]]:
    """Run `holdfast train` with these settings; its run folder and the rows of its metrics.csv."""
    flags = []
    for name, value in settings.as_dict().items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            flags += [f"--{flag}", str(value)]
    output_of([sys.executable, "-m", "holdfast", "train", settings.TASK, *flags])
    run = Path(settings.project) / settings.name
    return run, list(csv.DictReader((run / "metrics.csv").read_text(encoding="utf-8").splitlines()))


def _seconds(row: Any) -> float:
    return float(row["step_seconds"] if isinstance(row, dict) else row[0])


def theirs(settings: DetectSettings) -> dict[str, Any]:
    """The Trainer, in a process of its own."""
    return in_own_process(__file__, "--trainer", settings)


def in_own_process(script: str, flag: str, settings: TrainSettings) -> dict[str, Any]:
    """Start a benchmark's script again with the settings as a file; it writes result.json beside it."""
    folder = Path(settings.project)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "settings.json"
    file.write_text(json.dumps(settings.as_dict()), encoding="utf-8")
    output_of([sys.executable, script, flag, str(file)])
    result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return result


def output_of(command: list[str]) -> str:
    """What a command prints; one that fails ends the benchmark with its last lines."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
    return done.stdout


def trainer(settings: DetectSettings) -> None:
    """Train under the Hugging Face Trainer; the mAP of each epoch and the seconds of each step go to result.json."""
    import holdfast
    from holdfast.train.detect.task import DetectTask
    from holdfast.train.devices import place
    from holdfast.train.optimize import Schedule, make_optimizer

    with place(settings.device) as here:
        holdfast.seed(settings.seed, deterministic=False)
        task = DetectTask(settings, here)
        model = task.model().to(here.device)
        optimizer = make_optimizer(model, settings, settings.lr0 or task.lr)
        schedule = Schedule(optimizer, settings, -(-len(task.train_data()) // settings.batch))
        measured = _measured(task, model, settings, here)
        _detector()(
            model=model,
            args=_training_arguments(settings, here),
            train_dataset=task.train_data(),
            data_collator=task.collate,
            optimizers=(optimizer, schedule),
            callbacks=[measured],
        ).train()
    result = {"maps": measured.maps, "seconds": measured.seconds}
    (Path(settings.project) / "result.json").write_text(json.dumps(result), encoding="utf-8")


def _detector() -> Any:
    """The Trainer with the loss of our task."""
    import transformers

    from holdfast.train.detect.architectures import forward_loss

    class Detector(transformers.Trainer):
        def compute_loss(self, model: Any, inputs: dict[str, Any], *_: Any, **__: Any) -> Any:
            with self.compute_loss_context_manager():
                return forward_loss(model, inputs["images"], inputs["boxes"], inputs["classes"])

    return Detector


def _measured(task: Any, model: Any, settings: DetectSettings, here: Any) -> Any:
    """A callback that averages the weights, takes the time of each step, and evaluates after each epoch."""
    import transformers

    from holdfast.train.optimize import Ema

    ema = Ema(model, settings.ema)

    class Measured(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.maps: list[float] = []
            self.seconds: list[float] = []
            self.last: float | None = None

        def on_epoch_begin(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
            task.train_data().set_epoch(round(state.epoch or 0))
            self.last = None

        def on_step_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
            ema.update(model)
            now = time.perf_counter()
            if self.last is not None and state.global_step > WARM:
                self.seconds.append(now - self.last)
            self.last = now

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            self.maps.append(_map(task, ema.module, settings, here))

    return Measured()


def _map(task: Any, model: Any, settings: DetectSettings, here: Any) -> float:
    import torch
    from torch.utils.data import DataLoader

    from holdfast.train.devices import to_device

    data, workers = task.val_data(), settings.workers
    loader = DataLoader(data, settings.batch, num_workers=workers, collate_fn=task.collate, pin_memory=True)
    with torch.no_grad(), torch.autocast(here.device.type, torch.bfloat16, enabled=settings.half == "bf16"):
        batches = (to_device(batch, here.device) for batch in loader)
        return float(task.evaluate(model, batches, here).metrics["map"])


def _training_arguments(settings: DetectSettings, here: Any) -> Any:
    import transformers

    return transformers.TrainingArguments(
        output_dir=str(Path(settings.project) / "trainer"),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch,
        max_grad_norm=settings.max_grad_norm,
        bf16=settings.half == "bf16",
        dataloader_num_workers=settings.workers,
        remove_unused_columns=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=here.device.type == "cpu",
        seed=settings.seed,
    )


def main() -> int:
    """Train, print the table, and say whether the bars are kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", default="../shared/data/bccd/yolo/data.yaml")
    parser.add_argument("--architecture", default="dfine-n")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--imgsz", type=int, default=320)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, for the mAP")
    parser.add_argument("--turns", type=int, default=3, help="short runs of each side, alone and in turn, for the step time")
    parser.add_argument("--turn-epochs", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--half", default="none", choices=("none", "bf16"))
    parser.add_argument("--augment", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--trainer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trainer is not None:
        trainer(DetectSettings(**json.loads(arguments.trainer.read_text(encoding="utf-8"))))
        return 0
    print(f"{today()}: {machine(arguments.jobs)}")
    print(f"{arguments.architecture} from scratch at {arguments.imgsz} px, {arguments.epochs} epochs, {arguments.data}")
    augmented = "augmented" if arguments.augment else "not augmented"
    print(f"batch {arguments.batch_size}, {augmented}, mixed precision: {arguments.half}")
    best: dict[str, list[float]] = {"holdfast": [], "Trainer": []}
    steps: dict[str, list[float]] = {"holdfast": [], "Trainer": []}
    sides = {"holdfast": ours, "Trainer": theirs}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [(seed, name) for seed in range(arguments.seeds) for name in sides]
        settings = [settings_of(arguments, seed, Path(folder) / f"{name}-{seed}") for seed, name in runs]
        print(f"{'seed':>4}  {'':10}  {'mAP50-95':>8}  {'last epoch':>10}", flush=True)
        for (seed, name), result in zip(runs, pool.map(lambda run, chosen: sides[run[1]](chosen), runs, settings), strict=True):
            best[name].append(max(result["maps"]))
            print(f"{seed:>4}  {name:10}  {best[name][-1]:8.4f}  {result['maps'][-1]:10.4f}", flush=True)
        for turn in range(arguments.turns):
            for name, train in sides.items():
                chosen = settings_of(arguments, turn, Path(folder) / f"{name}-turn-{turn}")
                steps[name].append(statistics.median(train(chosen.with_changes(epochs=arguments.turn_epochs))["seconds"]))
                print(f"turn {turn}, {name}: median step {1e3 * steps[name][-1]:.1f} ms", flush=True)
    means = {name: statistics.mean(values or [0.0]) for name, values in best.items()}
    difference = means["holdfast"] - means["Trainer"]
    ratio = statistics.median(steps["holdfast"]) / statistics.median(steps["Trainer"])
    if arguments.seeds:
        print(f"mean mAP50-95: holdfast {means['holdfast']:.4f}, Trainer {means['Trainer']:.4f}; difference {difference:+.4f}")
    print(f"step: {ratio:.3f} times as long as under the Trainer")
    kept = difference >= LEAST_MAP and ratio <= MOST_TIME
    print(f"bars (mAP at most a point below, a step at most {MOST_TIME} times as long): {'kept' if kept else 'MISSED'}")
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
