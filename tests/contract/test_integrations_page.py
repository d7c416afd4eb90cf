"""Each claim in the tables of docs/integrations.md names a test that exists, and no trainer leaves one out."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTHING = ("no", "the same")
CLAIMS = {"evaluations", "checkpoints", "damaged newest checkpoint", "resume", "`heal` stops and saves", "`heal` rolls back"}
FILES = {
    "Lightning": "test_lightning_callback",
    "Hugging Face Trainer": "test_transformers_callback",
    "Accelerate": "test_accelerate_tracker",
    "Ultralytics": "test_ultralytics_callbacks",
    "Keras 3 on torch": "test_keras_callback",
}
RANKS = "test_trainer_ranks"


def rows(trainer: str) -> dict[str, list[str]]:
    """The table of a trainer that compares with and without a callback: what each row is about, and its two cells."""
    page = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {trainer}\n")[2].partition("\n## ")[0]
    lines = [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in section.splitlines() if line.startswith("| ")
    ]
    assert all(len(cells) == 3 for cells in lines), trainer
    return {what: cells for what, *cells in lines[1:]}


def test_each_cell_names_a_test_that_exists() -> None:
    defined = {name: path.stem for path in (ROOT / "tests").rglob("test_*.py") for name in names_in(path)}
    for trainer, file in FILES.items():
        table = rows(trainer)
        assert table.keys() >= CLAIMS, f"{trainer}: no row about {CLAIMS - table.keys()}"
        for what, cells in table.items():
            for cell in cells:
                named = re.findall(r"`(test_\w+)`", cell)
                assert named or cell in NOTHING, f"{trainer}, {what}: {cell} names no test"
                assert not set(named) - defined.keys(), f"{trainer}, {what}: there is no {set(named) - defined.keys()}"
            others = {defined[name] for name in re.findall(r"`(test_\w+)`", cells[1])} - {file, RANKS}
            assert not others, f"{trainer}, {what}: with the callback, a test of {others} shows nothing"


def names_in(path: Path) -> list[str]:
    return re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
