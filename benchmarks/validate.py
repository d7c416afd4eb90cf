"""How fast data is validated: `.venv/bin/python benchmarks/validate.py [--images 4000] [--folder KEEP]`.

On one made set of photographs (640 × 480 JPEG with YOLO labels, cut and mirrored from ../shared/data/bccd if that is here):

- the plain loop: Pillow's `open`, `verify()`, and the label's lines as numbers. `verify()` of a JPEG reads its header only;
- the plain loop that decodes: `load()` in its place;
- Ultralytics' own scan of a data set, where it is installed (and the folder it is in named with --ultralytics);
- `holdfast validate --quick`, which decodes nothing either, and `holdfast validate`, which decodes everything.

Each is a process of its own with one core, measured in seconds of that core; starting Python and importing is left out. Then
`holdfast validate` with all cores, once and once more. Bars: quick at least as fast as the fastest that does not decode; decoding
at least as fast as the loop that decodes; the second run at least 10 times as fast as the first; 1,500 images a second on two
cores; and memory that hardly grows with the images.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SHARED = Path(__file__).parents[2] / "shared" / "data" / "bccd" / "yolo" / "images"
WORDS = {
    "verify": "Pillow open + verify() + labels",
    "load": "Pillow open + load() + labels",
    "ultralytics": "Ultralytics' scan (one thread)",
    "quick": "holdfast validate --quick",
    "full": "holdfast validate",
}
QUALITY = 78  # files of 21 KB, as BCCD's own have
SECOND_RUN = 10.0
TWO_CORES = 1500.0  # images a second
BYTES_AN_IMAGE = 2000.0  # a perceptual hash, a thumbnail of 256 bytes, names


# --- the set


def make(folder: Path, count: int) -> None:
    """Photographs with labels: no two alike."""
    import numpy as np
    from PIL import Image

    sources = sorted(SHARED.rglob("*.jpg"))
    for number in range(count):
        split = "val" if number % 5 == 0 else "train"
        chance = np.random.default_rng(number)
        if sources:
            picture = varied(Image.open(sources[number % len(sources)]), number // len(sources))
        else:
            picture = Image.fromarray(chance.integers(0, 255, (24, 32, 3), np.uint8)).resize((640, 480), Image.Resampling.BICUBIC)
        image = folder / "images" / split / f"{number:06}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        picture.save(image, quality=QUALITY)
        label = folder / "labels" / split / f"{number:06}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        sides, middles = chance.uniform(0.05, 0.3, (13, 2)), chance.uniform(0.2, 0.8, (13, 2))
        rows = zip(chance.integers(0, 3, 13), *middles.T, *sides.T, strict=True)
        label.write_text("".join("{} {:.6f} {:.6f} {:.6f} {:.6f}\n".format(*row) for row in rows))
    (folder / "data.yaml").write_text("path: .\ntrain: images/train\nval: images/val\nnames: [RBC, WBC, Platelets]\n")


def varied(picture: object, way: int) -> object:
    """Mirrored, and cut at another place."""
    from PIL import Image, ImageOps

    assert isinstance(picture, Image.Image)
    shift = 40 * (way // 4 % 3)
    cut = picture.crop((shift, shift, 520 + shift, 390 + shift)).resize((640, 480), Image.Resampling.BICUBIC)
    cut = ImageOps.mirror(cut) if way % 2 else cut
    return ImageOps.flip(cut) if way // 2 % 2 else cut


# --- what runs in a process of its own


def plain(folder: Path, *, decode: bool) -> Callable[[], int]:
    from PIL import Image

    def work() -> int:
        count = 0
        for image in sorted((folder / "images").rglob("*.jpg")):
            picture = Image.open(image)
            picture.load() if decode else picture.verify()
            label = Path(str(image).replace("/images/", "/labels/")).with_suffix(".txt")
            for line in label.read_text().splitlines():
                kind, *box = (float(word) for word in line.split())
                assert len(box) == 4 and kind < 3
            count += 1
        return count

    return work


def ultralytics(folder: Path) -> Callable[[], int]:
    from ultralytics.data.utils import verify_image_label

    def work() -> int:
        count = 0
        for image in sorted((folder / "images").rglob("*.jpg")):
            label = str(image).replace("/images/", "/labels/")[:-4] + ".txt"
            found = verify_image_label((str(image), label, "", False, 3, 0, 0, False))
            assert found[0], found
            count += 1
        return count

    return work


def holdfast(folder: Path, *, quick: bool) -> Callable[[], int]:
    from holdfast.data.validate import Settings, validate

    return lambda: validate(folder, Settings(jobs=1, quick=quick)).samples


WAYS: dict[str, Callable[[Path], Callable[[], int]]] = {
    "verify": lambda folder: plain(folder, decode=False),
    "load": lambda folder: plain(folder, decode=True),
    "ultralytics": ultralytics,
    "quick": lambda folder: holdfast(folder, quick=True),
    "full": lambda folder: holdfast(folder, quick=False),
}


def once(way: str, folder: Path) -> float:
    """Images per second of one core; for `memory`, the bytes that the process took at most."""
    if way == "memory":
        holdfast(folder, quick=False)()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    work = WAYS[way](folder)
    started = time.process_time()
    return work() / (time.process_time() - started)


# --- measuring


def measured(way: str, folder: Path, times: int, beside: str | None) -> float | None:
    """The best of some runs, each in a process of its own."""
    rates = []
    for _ in range(times):
        variables = {**os.environ, "PYTHONPATH": beside or "", "OMP_NUM_THREADS": "1", "YOLO_VERBOSE": "False"}
        command = [sys.executable, __file__, "--once", way, "--folder", str(folder)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
        if answer.returncode:
            if way != "ultralytics":
                raise SystemExit(answer.stderr)
            return None
        rates.append(float(json.loads(answer.stdout.splitlines()[-1])))
    return max(rates)


def bytes_an_image(folder: Path) -> float:
    """How much more memory each image more takes: against a set of a quarter of the size."""
    count = sum(1 for _ in (folder / "images").rglob("*.jpg"))
    with tempfile.TemporaryDirectory() as place:
        make(Path(place), count // 4)
        small, large = (measured("memory", one, 1, None) or 0.0 for one in (Path(place), folder))
    return (large - small) / (count - count // 4)


def twice(folder: Path) -> tuple[float, float, float]:
    """Seconds of the command with all cores, once and once more, and the processor's seconds of the first time."""
    from holdfast.data.validate import Settings, validate

    with tempfile.TemporaryDirectory() as cache:
        seconds, busy = [], []
        for _ in range(2):
            started, spent = time.perf_counter(), sum(os.times()[:4])
            validate(folder, Settings(cache=Path(cache)))
            seconds.append(time.perf_counter() - started)
            busy.append(sum(os.times()[:4]) - spent)
    return seconds[0], seconds[1], busy[0]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--images", type=int, default=4000)
    options.add_argument("--folder", type=Path)
    options.add_argument("--times", type=int, default=3)
    options.add_argument("--ultralytics", help="a folder in which Ultralytics is installed")
    options.add_argument("--once", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.once:
        print(json.dumps(once(chosen.once, chosen.folder)))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = chosen.folder or Path(place)
        if not (folder / "data.yaml").exists():
            make(folder, chosen.images)
        raise SystemExit(compare(folder, chosen.times, chosen.ultralytics))


def compare(folder: Path, times: int, beside: str | None) -> int:
    count = sum(1 for _ in (folder / "images").rglob("*.jpg"))
    size = sum(image.stat().st_size for image in (folder / "images").rglob("*.jpg")) / count
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    print(f"{count:,} JPEG images of 640 × 480 and {size / 1000:.1f} kB with 13 boxes each; {machine}")
    rates = {way: measured(way, folder, times, beside) for way in WAYS}
    for way, rate in rates.items():
        print(f"  {WORDS[way]:34} {f'{rate:8,.0f} images/s a core' if rate else '       – not installed'}")
    first, second, busy = twice(folder)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"  holdfast validate, {cores} cores: {first:.1f} s, once more {second:.2f} s: {first / second:.0f} times as fast")
    print(f"  all processes together: {1000 * busy / count:.2f} ms of a core per image, with the start of the processes")
    each = bytes_an_image(folder)
    quick, full, verify, load = (rates[way] or 0.0 for way in ("quick", "full", "verify", "load"))
    fastest = max(verify, rates["ultralytics"] or 0.0)
    bars = [
        (quick >= fastest, f"quick is {quick / fastest:.2f} times as fast as the fastest that does not decode"),
        (full >= load, f"decoding is {full / load:.2f} times as fast as the loop that decodes"),
        (first >= SECOND_RUN * second, f"the second run is {first / second:.0f} times as fast"),
        (count / first >= TWO_CORES or cores != 2, f"validate checks {count / first:,.0f} images/s on {cores} cores"),
        (each <= BYTES_AN_IMAGE, f"each image more takes {each:,.0f} bytes of memory"),
    ]
    for met, words in bars:
        print(f"{'met ' if met else 'MISSED'}  {words}")
    return 0 if all(met for met, _ in bars) else 1


if __name__ == "__main__":
    main()
