"""A tiny training with Ultralytics; prints its counters at the end.

ultralytics_trainer.py [--policy heal] [--epochs N] [--resume PATH]
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
from PIL import Image

os.environ["YOLO_CONFIG_DIR"] = str(Path.cwd())
os.environ["YOLO_OFFLINE"] = "true"
from ultralytics import YOLO

from holdfast.integrations.ultralytics import add_callbacks

parser = argparse.ArgumentParser()
parser.add_argument("--policy", default="observe")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--without", action="store_true")
options = parser.parse_args()

random = np.random.default_rng(0)
for part, count in (("train", 8), ("val", 4)):
    for kind in ("images", "labels"):
        Path("data", kind, part).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        picture = random.integers(0, 80, (32, 32, 3), dtype=np.uint8)
        picture[8:24, 8:24] = 250
        Image.fromarray(picture).save(f"data/images/{part}/{number}.png")
        Path(f"data/labels/{part}/{number}.txt").write_text("0 0.5 0.5 0.5 0.5\n")
Path("data.yaml").write_text(f"path: {Path.cwd() / 'data'}\ntrain: images/train\nval: images/val\nnames: [square]\n")

model = YOLO("yolov8n.yaml")
if not options.without:
    add_callbacks(model, name="yolo", policy=options.policy)
model.train(
    data="data.yaml", epochs=options.epochs, imgsz=32, batch=4, nbs=4, workers=0, device="cpu", plots=False, amp=False,
    pretrained=False, project=str(Path.cwd()), name="out", exist_ok=True, verbose=False, patience=0,
)  # fmt: skip
trainer = model.trainer
print(json.dumps({"epoch": trainer.epoch + 1, "updates": trainer.ema.updates, "stopped": bool(trainer.stop)}))
