"""Files that were made to hang, to crash or to fill the memory of whoever looks at them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from holdfast_run import typed

from holdfast.checkpoints.formats.open import open_checkpoint


def index(path: Path, *names: str) -> Path:
    path.write_text(json.dumps({"weight_map": {f"weight {number}": name for number, name in enumerate(names)}}))
    return path


def test_indexes_that_name_themselves_or_each_other_are_told_at_once(tmp_path: Path) -> None:
    itself = index(tmp_path / "itself.safetensors.index.json", "itself.safetensors.index.json")
    one = index(tmp_path / "one.safetensors.index.json", "other.safetensors.index.json")
    index(tmp_path / "other.safetensors.index.json", "one.safetensors.index.json", "itself.safetensors.index.json")
    for path in (itself, one):
        contents = open_checkpoint(path)
        assert contents.state == "unreadable" and "is an index of other files" in contents.troubles[0].words


def test_indexes_that_lead_to_ever_more_indexes_are_not_followed(tmp_path: Path) -> None:
    for level in range(12):
        below = [f"{level + 1}-{number}.safetensors.index.json" for number in range(10)]
        for number in range(10):
            index(tmp_path / f"{level}-{number}.safetensors.index.json", *below)
    assert open_checkpoint(tmp_path / "0-0.safetensors.index.json").state == "unreadable"


def test_one_hostile_file_is_a_row_and_not_the_end_of_the_listing(tmp_path: Path) -> None:
    tensor = {"dtype": "F32", "shape": [2**62 - 1] * 300, "data_offsets": [0, 4]}
    header = json.dumps({"huge": tensor}).encode()
    (tmp_path / "hostile.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    fine = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "fine.safetensors").write_bytes(struct.pack("<Q", len(fine)) + fine + b"\0" * 4)
    done = typed("checkpoints", "list", "--json", str(tmp_path))
    states = {Path(row["path"]).name: row["state"] for row in json.loads(done.stdout)}
    assert states == {"hostile.safetensors": "unreadable", "fine.safetensors": "clean"}, done
