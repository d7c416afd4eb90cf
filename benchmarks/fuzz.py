"""Damaged files of every format, by the thousand: `.venv/bin/python benchmarks/fuzz.py [--inputs 10000] [--seed 0]`.

Small valid checkpoints and data sets are damaged by flipped bytes, truncation, changed length fields, duplicated parts, splices
of two files, odd values in texts, and damage inside the records of zip files, whose checksums are then right. Each is read as
the command line reads it: checkpoints are verified, summed up and compared, data is validated, counted and drawn. The bar: no
crash, no answer after more than 5 s, never more than 200 MB, and nothing that is inside is executed. Input N is the same each
time: `--only N --keep FOLDER` makes it again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pickle
import random
import re
import select
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

SECONDS, MEGABYTES = 5.0, 200.0
FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "socket.connect",
    "pty.spawn",
    "os.startfile",
)
LENGTHS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 33, (1 << 62) - 1, (1 << 63) - 1, (1 << 64) - 1)
_CANARY = "executed"


class Payload:
    """What a hostile pickle holds: unpickled, it leaves a file behind."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {_CANARY}",)


# --- small valid files of each format


def checkpoint_seeds(folder: Path) -> None:
    """Checkpoints as torch, safetensors, torch.distributed, Hugging Face, DeepSpeed and Holdfast write them."""
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file

    from holdfast.checkpoints.safetensors import Tensors
    from holdfast.checkpoints.write import write_checkpoint

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = {"model": weights, "optimizer": optimizer.state_dict(), "step": 7, "epoch": 1, "val_acc": 0.5}

    def place(name: str) -> Path:
        (folder / name).mkdir(parents=True)
        return folder / name

    torch.save(state, place("zip") / "a.pt")
    torch.save(state, place("legacy") / "a.pt", _use_new_zipfile_serialization=False)
    torch.save(model, place("module") / "a.pt")
    for protocol in (2, 4, 5):
        (place(f"pickle-{protocol}") / "a.pkl").write_bytes(
            pickle.dumps({"w": weights["0.weight"].numpy(), "n": [1, "x"]}, protocol)
        )
    (place("hostile") / "a.pt").write_bytes(pickle.dumps({"model": Payload(), "step": 3}))
    torch.save({"model": weights, "hook": Payload()}, place("hostile-zip") / "a.pt")
    save_file(weights, place("safetensors") / "a.safetensors")
    shards = place("sharded")
    names = sorted(weights)
    for number, some in enumerate((names[:4], names[4:]), 1):
        save_file({name: weights[name] for name in some}, shards / f"model-0000{number}-of-00002.safetensors")
    table = {name: f"model-0000{1 if name in names[:4] else 2}-of-00002.safetensors" for name in names}
    (shards / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))
    dcp.save(state, checkpoint_id=str(folder / "distributed"), no_dist=True)
    trainer = place("trainer/checkpoint-7").parent / "checkpoint-7"
    save_file(weights, trainer / "model.safetensors")
    torch.save(optimizer.state_dict(), trainer / "optimizer.pt")
    (trainer / "config.json").write_text(json.dumps({"model_type": "x", "hidden": 16}))
    history = [{"step": at, "loss": 1.0 / at, "epoch": at / 4} for at in range(1, 8)]
    (trainer / "trainer_state.json").write_text(json.dumps({"global_step": 7, "log_history": history}))
    deepspeed = place("deepspeed/global_step7")
    torch.save({"module": weights, "ds_version": "0.14"}, deepspeed / "mp_rank_00_model_states.pt")
    torch.save({"optimizer_state_dict": {}}, deepspeed / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    with contextlib.suppress(ImportError):
        import h5py

        with h5py.File(place("keras") / "a.weights.h5", "w") as file:
            for name, tensor in weights.items():
                file.create_dataset(f"layers/{name}/vars/0", data=tensor.numpy())
        with zipfile.ZipFile(folder / "keras" / "a.keras", "w") as archive:
            archive.writestr("metadata.json", json.dumps({"keras_version": "3.5.0"}))
            archive.writestr("config.json", json.dumps({"class_name": "Sequential", "config": {}}))
            archive.write(folder / "keras" / "a.weights.h5", "model.weights.h5")
    write_checkpoint(folder / "holdfast", 7, {"weights": Tensors(weights), "training": {"optimizers": [optimizer.state_dict()]}})


def data_seeds(folder: Path) -> None:
    """Data sets of the formats that `holdfast validate` knows, as far as their packages are installed."""
    import numpy as np

    dice = np.random.default_rng(0)
    _image_seeds(folder, dice)
    rows = [{"x": float(dice.random()), "name": f"row {n}", "label": n % 3} for n in range(40)]
    for kind in ("csv", "tsv", "jsonl", "json", "npy", "npz", "text"):
        (folder / kind).mkdir(parents=True)
    for kind, mark in (("csv", ","), ("tsv", "\t")):
        lines = [mark.join(rows[0]), *(mark.join(str(value) for value in row.values()) for row in rows)]
        (folder / kind / f"a.{kind}").write_text("\n".join(lines) + "\n")
    (folder / "jsonl/a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "json/a.json").write_text(json.dumps(rows))
    np.save(folder / "npy/a.npy", dice.random((32, 4)).astype(np.float32))
    np.savez(folder / "npz/a.npz", x=dice.random((32, 4)), y=np.arange(32))
    (folder / "ts").mkdir()
    head = (
        "@problemName x\n@timeStamps false\n@univariate true\n@equalLength true\n@seriesLength 4\n@classLabel true a b\n@data\n"
    )
    (folder / "ts/x_TRAIN.ts").write_text(head + "".join(f"{n}.0,2.5,-1,{n}:{'ab'[n % 2]}\n" for n in range(20)))
    (folder / "text/a.txt").write_text("\n".join("a line of text about nothing in particular" for _ in range(60)))
    with contextlib.suppress(ImportError):
        import pyarrow as arrow
        from pyarrow import feather, parquet

        table = arrow.Table.from_pylist(rows)
        for kind in ("parquet", "feather"):
            (folder / kind).mkdir()
        parquet.write_table(table, folder / "parquet/a.parquet")
        (folder / "arrow/train").mkdir(parents=True)
        shard = str(folder / "arrow/train/data-00000-of-00001.arrow")
        with arrow.OSFile(shard, "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        (folder / "arrow/train/state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
        (folder / "arrow/train/dataset_info.json").write_text(json.dumps({"features": {}}))
        feather.write_feather(table, folder / "feather/a.feather")
    with contextlib.suppress(ImportError):
        import uproot

        (folder / "root").mkdir()
        with uproot.recreate(folder / "root/a.root") as file:
            file["events"] = {"x": dice.random(40), "n": np.arange(40)}


def _image_seeds(folder: Path, dice: Any) -> None:
    from PIL import Image

    def picture(path: Path, *, mask: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = dice.integers(0, 3 if mask else 255, (24, 32) if mask else (24, 32, 3)).astype("uint8")
        Image.fromarray(pixels).save(path)

    for number, kind in enumerate(("png", "jpg", "bmp", "gif", "tif", "webp")):
        for name in ("cat", "dog"):
            picture(folder / "images" / name / f"{number}.{kind}")
    for number in range(2):
        picture(folder / f"yolo/images/train/{number}.jpg")
        picture(folder / f"voc/JPEGImages/{number}.jpg")
        picture(folder / f"coco/images/{number}.png")
        picture(folder / f"masks/images/{number}.png")
        picture(folder / f"masks/masks/{number}.png", mask=True)
        label = folder / f"yolo/labels/train/{number}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("0 0.5 0.5 0.2 0.3\n1 0.2 0.2 0.1 0.1\n")
        box = "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>12</xmax><ymax>15</ymax></bndbox>"
        note = folder / f"voc/Annotations/{number}.xml"
        note.parent.mkdir(parents=True, exist_ok=True)
        size = "<size><width>32</width><height>24</height><depth>3</depth></size>"
        note.write_text(f"<annotation><filename>{number}.jpg</filename>{size}<object><name>cat</name>{box}</object></annotation>")
    for number in range(2):
        picture(folder / f"masks/images/{number}.png")
        picture(folder / f"masks/masks/{number}.png", mask=True)
    (folder / "webdataset").mkdir()
    with tarfile.open(folder / "webdataset/000.tar", "w") as archive:
        for number in range(2):
            archive.add(folder / f"yolo/images/train/{number}.jpg", f"{number}.jpg")
            archive.add(folder / f"yolo/labels/train/{number}.txt", f"{number}.cls")
    (folder / "yolo/data.yaml").write_text("path: .\ntrain: images/train\nval: images/train\nnames: [cat, dog]\n")
    boxes = [{"id": n, "image_id": n, "category_id": 1, "bbox": [2, 3, 9, 9], "area": 81, "iscrowd": 0} for n in range(2)]
    pictures = [{"id": n, "file_name": f"{n}.png", "width": 32, "height": 24} for n in range(2)]
    coco = {"images": pictures, "annotations": boxes, "categories": [{"id": 1, "name": "cat"}]}
    (folder / "coco/annotations.json").write_text(json.dumps(coco))


# --- how they are damaged


def damaged(data: bytes, other: bytes, dice: random.Random) -> bytes:
    """One to three damages, one after the other."""
    for _ in range(dice.choice((1, 1, 2, 3))):
        data = dice.choice((*_DAMAGES, _odd_value, _inside_zip))(data, other, dice)
    return data


def _flipped(data: bytes, _: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 2, 8, 64))):
        if changed:
            changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _truncated(data: bytes, _: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


def _other_length(data: bytes, _: bytes, dice: random.Random) -> bytes:
    """A number of 1 to 8 bytes is another one: most often near the beginning or the end, where lengths stand."""
    width = dice.choice((1, 2, 4, 8))
    near = min(len(data), 256)
    at = dice.choice((dice.randrange(near + 1), max(0, len(data) - dice.randrange(near + 1)), dice.randrange(len(data) + 1)))
    value = (dice.choice(LENGTHS) & ((1 << 8 * width) - 1)).to_bytes(width, dice.choice(("little", "big")))
    return data[:at] + value + data[at + width :]


def _doubled(data: bytes, _: bytes, dice: random.Random) -> bytes:
    begin = dice.randrange(len(data) + 1)
    end = min(len(data), begin + dice.randrange(1, 4096))
    return data[:end] + data[begin:end] * dice.choice((1, 2, 50)) + data[end:]


def _spliced(data: bytes, other: bytes, dice: random.Random) -> bytes:
    return data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]


_DAMAGES = (_flipped, _truncated, _other_length, _doubled, _spliced)
_VALUE = re.compile(rb'-?\d+(?:\.\d+)?|"[^"\n]{0,200}"|true|false|null')
_ODD_VALUES = (
    b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"0.0", b"1.5", b"9" * 40, b"9" * 5000, b"null", b"true", b'""', b"[]", b"{}",
    b"[" * 2000, b'"\\ud800"', b"\xff\xfe", b'"../../../etc/passwd"', b'"/etc/passwd"', b"", b"\0", b"\xef\xbb\xbf", b"\r\n",
)  # fmt: skip


def _odd_value(data: bytes, _: bytes, dice: random.Random) -> bytes:
    """Up to three values of a text are other ones."""
    for _ in range(dice.choice((1, 1, 3))):
        places = [match.span() for match in _VALUE.finditer(data[: 1 << 16])]
        if not places:
            return data
        begin, end = dice.choice(places)
        data = data[:begin] + dice.choice(_ODD_VALUES) + data[end:]
    return data


def _inside_zip(data: bytes, other: bytes, dice: random.Random) -> bytes:
    """A record of a zip file is damaged, and the file written again with the checksum of that."""
    with contextlib.suppress(Exception):  # it is no zip file, or damaged already
        buffer = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(buffer, "w") as again:
            target = dice.choice(archive.namelist())
            for record in archive.infolist():
                content = archive.read(record)
                damage = dice.choice((*_DAMAGES, _odd_value))
                again.writestr(record.filename, damage(content, other, dice) if record.filename == target else content)
        return buffer.getvalue()
    return data


def make_input(seeds: Path, into: Path, number: int, seed: int) -> tuple[str, Path]:
    """Input `number`: its kind, and the folder that it lies in. One file of a seed is damaged, the others are whole."""
    dice = random.Random(f"{seed}-{number}")
    kinds = sorted(path.relative_to(seeds) for group in ("checkpoints", "data") for path in (seeds / group).iterdir())
    kind = kinds[number % len(kinds)]
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(seeds / kind, into / kind.name)
    files = sorted(path for path in (into / kind.name).rglob("*") if path.is_file())
    everything = sorted(path for path in seeds.rglob("*") if path.is_file())
    target = dice.choice(files)
    target.write_bytes(damaged(target.read_bytes(), dice.choice(everything).read_bytes(), dice))
    return str(kind), into / kind.name


# --- how they are read, in a process of its own


def read(kind: str, folder: Path) -> str:
    """Read an input as the command line does; returns what is wrong with how it was read."""
    return _read_checkpoints(folder) if kind.startswith("checkpoints") else _read_data(folder)


def _read_checkpoints(folder: Path) -> str:
    from holdfast.checkpoints.formats.find import find_checkpoints
    from holdfast.checkpoints.formats.open import open_checkpoint
    from holdfast.checkpoints.summary import summarise
    from holdfast.checkpoints.verify import verify
    from holdfast.errors import HoldfastError
    from holdfast.matching.from_contents import side_of

    for path in find_checkpoints(folder) or sorted(folder.rglob("*")):
        try:
            contents = open_checkpoint(path)
        except HoldfastError:
            continue
        wrong = next((one.text for one in contents.troubles if one.text.startswith("Reading it failed")), "")
        if wrong:
            return wrong
        json.dumps(verify(contents).as_row())
        json.dumps(summarise(contents).as_row())
        side_of(contents)
    return ""


def _read_data(folder: Path) -> str:
    from holdfast.data.stats.take import take_statistics
    from holdfast.data.validate import Settings, validate
    from holdfast.data.visualize.sample import Wish
    from holdfast.data.visualize.visualize import visualize
    from holdfast.errors import HoldfastError

    settings, page = Settings(jobs=1), folder.parent.parent / "page.html"
    for look in (
        lambda: validate(folder, settings),
        lambda: take_statistics(folder, Settings(jobs=1, pixels=True)),
        lambda: visualize(str(folder), settings, Wish(samples=4), page),
    ):
        try:
            json.dumps(look().as_row())
        except HoldfastError as error:
            if not error.problem or not error.fix:
                return "an error without words"
        finally:
            page.unlink(missing_ok=True)
    return ""


def work(seeds: Path, seed: int) -> None:
    """Read inputs, whose numbers come line by line; answer with a line for each."""
    import resource
    import warnings

    warnings.simplefilter("ignore")
    with contextlib.suppress(ImportError):
        import h5py  # noqa: F401  it asks the system for the processor's name when it is imported
    executed: list[str] = []
    sys.addaudithook(lambda event, _: executed.append(event) if event in FORBIDDEN else None)
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="holdfast-fuzz-") as scratch:
        os.chdir(scratch)
        for line in sys.stdin:
            kind, folder = make_input(seeds, Path(scratch) / "input", int(line), seed)
            executed.clear()
            Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
            before, started, wrong = memory("VmRSS"), time.perf_counter(), ""
            try:
                wrong = read(kind, folder)
            except BaseException as error:  # noqa: BLE001  whatever it is, it is what is looked for
                wrong = f"{type(error).__name__}: {error}"[:300]
            if executed or Path(_CANARY).exists():
                wrong = f"executed: {executed[:3]}"
            row = {"kind": kind, "wrong": wrong, "seconds": time.perf_counter() - started, "megabytes": memory("VmHWM") - before}
            print(json.dumps(row), file=answers, flush=True)


def memory(name: str) -> float:
    """A line of /proc/self/status in MB."""
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 1000 if found else 0.0


# --- the whole run


class Worker:
    """A process that reads inputs. One that hangs or dies is replaced."""

    def __init__(self, seeds: Path, seed: int) -> None:
        command = [sys.executable, __file__, "--work", str(seeds), "--seed", str(seed)]
        self._command, self._process = command, self._started(command)

    @staticmethod
    def _started(command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def ask(self, number: int, seconds: float) -> dict[str, Any]:
        """Its answer about an input; a hang or a crash is an answer too."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        line = process.stdout.readline() if ready else ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        process.kill()
        wrong = f"no answer after {seconds:.0f} s" if not ready else f"the process died with {process.wait()}"
        self._process = self._started(self._command)
        return {"kind": "?", "wrong": wrong, "seconds": seconds, "megabytes": 0.0}

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def fuzz(count: int, seed: int, seeds: Path) -> list[str]:
    """Read so many inputs; returns what is wrong, a line for each input."""
    worker, wrong, kinds = Worker(seeds, seed), [], Counter[str]()
    slowest = largest = (0.0, "")
    try:
        for number in range(count):
            first = kinds.total() < 100  # what is imported takes longer than what is read
            answer = worker.ask(number, 60.0 if first else 2 * SECONDS)
            kinds[answer["kind"]] += 1
            about = f"input {number} ({answer['kind']})"
            late = not first and answer["seconds"] > SECONDS
            large = not first and answer["megabytes"] > MEGABYTES
            slowest = max(slowest, (answer["seconds"], about)) if not first else slowest
            largest = max(largest, (answer["megabytes"], about)) if not first else largest
            if answer["wrong"] or late or large:
                wrong.append(f"{about}: {answer['wrong'] or ''} {answer['seconds']:.1f} s, {answer['megabytes']:.0f} MB")
                print(wrong[-1], flush=True)
    finally:
        worker.close()
    print(f"{count:,} inputs of {len(kinds)} formats, seed {seed}: {len(wrong)} wrong")
    print(f"slowest {slowest[0]:.2f} s: {slowest[1]}; most memory {largest[0]:.0f} MB: {largest[1]}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="make this input again, and read it here")
    parser.add_argument("--keep", type=Path, help="the folder for that input")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments.work, arguments.seed)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-seeds-") as folder:
        seeds = Path(folder)
        checkpoint_seeds(seeds / "checkpoints")
        data_seeds(seeds / "data")
        if arguments.only is not None:
            kind, place = make_input(seeds, arguments.keep or seeds / "input", arguments.only, arguments.seed)
            print(kind, place, read(kind, place) or "read without a crash")
            return
        sys.exit(bool(fuzz(arguments.inputs, arguments.seed, seeds)))


if __name__ == "__main__":
    main()
