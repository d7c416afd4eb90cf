"""Ultralytics' loop: its small classifier on scikit-learn's digits, as pictures in a folder for each class."""

import sys
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits
from ultralytics import YOLO

PACKAGE = "ultralytics"
HALF = "build"
ARGUMENTS = "{folder}"  # of each run's own

folder = Path(sys.argv[1]).resolve() / "digits"
digits = load_digits()
for number, (picture, label) in enumerate(zip(digits.images[:1000], digits.target[:1000], strict=True)):
    place = folder / ("val" if number % 5 == 0 else "train") / str(label)
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray((picture * 15.9).astype("uint8")).convert("RGB").resize((32, 32)).save(place / f"{number}.png")
settings = {"epochs": 5, "imgsz": 32, "batch": 16, "nbs": 16, "workers": 0, "device": "cpu", "plots": False, "pretrained": False}
YOLO("yolov8n-cls.yaml").train(data=str(folder), project=str(folder.parent), **settings)
