"""A tiny training with Ultralytics; prints its counters at the end.

ultralytics_trainer.py [--policy heal] [--epochs N] [--kill-at N] [--lr-at N] [--no-save] [--resume] [--without]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

os.environ["YOLO_CONFIG_DIR"] = str(Path.cwd())
os.environ["YOLO_OFFLINE"] = "true"
from ultralytics import YOLO

from holdfast.integrations.ultralytics import add_callbacks, newest_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--policy", default="observe")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--kill-at", type=int, default=-1, help="epoch")
parser.add_argument("--lr-at", type=int, default=-1, help="epoch at which the learning rate becomes far too high")
parser.add_argument("--no-save", action="store_true")
parser.add_argument("--resume", action="store_true")
parser.add_argument("--without", action="store_true")
options = parser.parse_args()

random = np.random.default_rng(0)
for part, count in (("train", 8), ("val", 4)):
    for kind in ("images", "labels"):
        Path("data", kind, part).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        picture = random.integers(0, 80, (64, 64, 3), dtype=np.uint8)
        picture[16:48, 16:48] = 250
        Image.fromarray(picture).save(f"data/images/{part}/{number}.png")
        Path(f"data/labels/{part}/{number}.txt").write_text("0 0.5 0.5 0.5 0.5\n")
Path("data.yaml").write_text(f"path: {Path.cwd() / 'data'}\ntrain: images/train\nval: images/val\nnames: [square]\n")


def fault(trainer: Any) -> None:
    if trainer.epoch == options.kill_at and not options.resume:
        while options.policy == "heal" and not list(trainer.wdir.glob(f"state/step-*{trainer.ema.updates}")):
            time.sleep(0.01)  # what a save has begun is written in the background
        os.kill(os.getpid(), signal.SIGKILL)
    if trainer.epoch == options.lr_at:
        for group in trainer.optimizer.param_groups:
            group["lr"] = 1.0


origin = newest_checkpoint("out/weights") if options.resume else None
model = YOLO(origin or "yolov8n.yaml")
model.add_callback("on_train_batch_start", fault)
if not options.without:
    add_callbacks(model, name="yolo", policy=options.policy)
if origin is not None:
    model.train(resume=True)
else:
    model.train(
        data="data.yaml", epochs=options.epochs, imgsz=64, batch=4, nbs=4, workers=0, device="cpu", plots=False, amp=False,
        pretrained=False, project=str(Path.cwd()), name="out", exist_ok=True, verbose=False, patience=0,
        save=not options.no_save, save_period=-1 if options.no_save else 1, warmup_epochs=0, optimizer="AdamW", lr0=3e-4,
    )  # fmt: skip
trainer = model.trainer
end = {"from": origin, "epoch": trainer.epoch + 1, "updates": trainer.ema.updates, "stopped": bool(trainer.stop)}
states = (*trainer.model.state_dict().values(), *trainer.ema.ema.state_dict().values())
weights = hashlib.sha256(b"".join(value.numpy().tobytes() for value in states)).hexdigest()
print(json.dumps({**end, "save": trainer.args.save, "weights": weights}))
