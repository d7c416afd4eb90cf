"""Make a small detection data set in YOLO format: discs, squares and triangles on a noisy ground.

usage: python examples/make_shapes.py [FOLDER] [IMAGES]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

NAMES = ("disc", "square", "triangle")
SIZE = 160


def draw(random: np.random.Generator) -> tuple[Image.Image, list[str]]:
    """One picture with one to four shapes, and its label lines."""
    ground = random.integers(60, 120, (SIZE, SIZE, 3)) + random.integers(-25, 25, (SIZE, SIZE, 3))
    picture = Image.fromarray(ground.astype(np.uint8))
    pen, lines = ImageDraw.Draw(picture), []
    for _ in range(random.integers(1, 5)):
        kind, side = int(random.integers(3)), int(random.integers(24, 56))
        x, y = (int(value) for value in random.integers(0, SIZE - side, 2))
        colour = tuple(int(value) for value in random.integers(140, 256, 3))
        corners = (x, y, x + side, y + side)
        if kind == 0:
            pen.ellipse(corners, fill=colour)
        elif kind == 1:
            pen.rectangle(corners, fill=colour)
        else:
            pen.polygon([(x + side / 2, y), (x, y + side), (x + side, y + side)], fill=colour)
        centre = ((x + side / 2) / SIZE, (y + side / 2) / SIZE, side / SIZE, side / SIZE)
        lines.append(" ".join([str(kind), *(f"{value:.6f}" for value in centre)]))
    return picture, lines


def main(folder: Path, images: int) -> None:
    """Write three quarters of the pictures for training, the rest for validation."""
    random = np.random.default_rng(0)
    for number in range(images):
        split = "val" if number % 4 == 3 else "train"
        picture, lines = draw(random)
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        picture.save(folder / "images" / split / f"{number:04d}.png")
        (folder / "labels" / split / f"{number:04d}.txt").write_text("\n".join(lines) + "\n")
    names = "".join(f"  {number}: {name}\n" for number, name in enumerate(NAMES))
    (folder / "data.yaml").write_text(f"path: .\ntrain: images/train\nval: images/val\nnames:\n{names}")
    print(f"{images} images in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "shapes"), int(sys.argv[2]) if len(sys.argv) > 2 else 64)
