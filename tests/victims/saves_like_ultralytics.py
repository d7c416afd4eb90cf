"""Writes a .pt as Ultralytics does, its module pickled whole; with stand-ins for its classes, as only their names are needed."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


def stand_in(module: str, name: str, base: type = torch.nn.Module) -> Any:
    """A class of that name in a module of that name."""
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:number]), ModuleType(".".join(parts[:number])))
    made = type(name, (base,), {"__module__": module})
    setattr(sys.modules[module], name, made)
    return made


def detection_model() -> torch.nn.Module:
    conv_class = stand_in("ultralytics.nn.modules.conv", "Conv")
    detect_class = stand_in("ultralytics.nn.modules.head", "Detect")
    conv = conv_class()
    conv.conv, conv.bn, conv.act = torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.SiLU(inplace=True)
    head = detect_class()
    head.cv2, head.nc, head.stride = torch.nn.ModuleList([torch.nn.Conv2d(8, 4, 1)]), 2, torch.tensor([8.0, 16.0, 32.0])
    model = stand_in("ultralytics.nn.tasks", "DetectionModel")()
    model.model = torch.nn.Sequential(conv, head)
    model.yaml, model.names, model.task = {"nc": 2, "scales": {"n": [0.5, 0.25, 1024]}}, {0: "cat", 1: "dog"}, "detect"
    model.args = stand_in("ultralytics.utils", "IterableSimpleNamespace", object)()
    model.args.imgsz = 640
    return model


if __name__ == "__main__":
    torch.manual_seed(0)
    model = detection_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sum(parameter.sum() for parameter in model.parameters()).backward()
    optimizer.step()
    checkpoint = {
        "epoch": 3,
        "best_fitness": 0.42,
        "model": None,
        "ema": model.half(),
        "updates": 12,
        "optimizer": optimizer.state_dict(),
        "scaler": {},
        "train_args": {"model": "yolo11n.pt", "epochs": 10, "imgsz": 640, "lr0": 0.01},
        "train_metrics": {"metrics/mAP50-95(B)": 0.41, "fitness": 0.42},
        "train_results": {"epoch": [1, 2, 3], "train/box_loss": [3.0, 2.5, 2.1]},
        "date": datetime(2025, 5, 6, 7, 8, 9).isoformat(),
        "version": "8.3.40",
        "license": "AGPL-3.0",
    }
    out = Path(sys.argv[1])
    torch.save(checkpoint, out / "last.pt")
    torch.save({**checkpoint, "epoch": -1, "model": checkpoint["ema"], "ema": None, "optimizer": None}, out / "best.pt")
