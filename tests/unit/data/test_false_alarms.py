"""Sound data of unusual shapes: nothing may be reported that is not there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from holdfast_run import typed

from holdfast.data.formats.text import lines


@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_an_array_in_fortran_order_is_read_as_any_other(tmp_path: Path, ending: str) -> None:
    values = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    plain, turned = tmp_path / "plain", tmp_path / "turned"
    for folder, array in ((plain, values), (turned, np.asfortranarray(values))):
        folder.mkdir()
        np.save(folder / "x.npy", array) if ending == "npy" else np.savez_compressed(folder / "x.npz", x=array)
    expected, found = (json.loads(typed("stats", "--json", str(folder)).stdout) for folder in (plain, turned))
    assert found["samples"] == 500 and found["figures"] == expected["figures"]
    assert typed("validate", str(turned)).returncode == 0
    values[7, 1] = np.nan
    np.save(turned / "x.npy", np.asfortranarray(values))
    assert "NaN" in typed("validate", str(turned)).stdout


def test_a_long_line_of_characters_of_three_bytes_is_valid_text(tmp_path: Path) -> None:
    text = "\u6f22\u5b57" * 500_000
    (tmp_path / "book.txt").write_text(text, encoding="utf-8")
    assert "".join(lines(tmp_path / "book.txt")) == text
    assert "invalid" not in typed("validate", str(tmp_path)).stdout
    (tmp_path / "book.txt").write_bytes(text.encode()[:-1])
    assert "".join(lines(tmp_path / "book.txt")).count("\ufffd") == 1, "a character that is really cut off is still seen"


def test_runs_of_holdfast_beside_the_data_are_no_part_of_it(tmp_path: Path) -> None:
    rows = "a,b\n" + "\n".join(f"{number},{number * 7 % 13}" for number in range(60))
    (tmp_path / "train.csv").write_text(rows)
    run = tmp_path / "runs" / "first"
    (run / "rank-0").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "rank-0" / "val.csv").write_text(rows)
    done = typed("validate", str(tmp_path))
    assert done.returncode == 0 and "leak" not in done.stdout, done.stdout
