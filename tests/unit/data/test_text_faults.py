"""One fault at a time is put into sound text and its tokenizer: it is found, and nothing else is reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import made_data as made
import numpy as np
import pytest
from every_case import every_case

from holdfast.data.validate import Settings, validate


def codes(path: Path, **settings: object) -> set[str]:
    return {problem.code for problem in validate(path, Settings(**settings)).problems}  # type: ignore[arg-type]


def strange_words(folder: Path) -> None:
    made.write(folder / "val.txt", "the quick brown fox jumps\n" * 3 + (folder / "val.txt").read_text())


def latin(folder: Path) -> None:
    made.write(folder / "val.txt", (folder / "val.txt").read_bytes() + "whale sea Kapitän\n".encode("latin-1"))


def empty(folder: Path) -> None:
    made.write(folder / "val.txt", "")


def leaked(folder: Path) -> None:
    lines = (folder / "train.txt").read_text().splitlines()[:8]
    made.write(folder / "val.txt", (folder / "val.txt").read_text() + "\n".join(lines) + "\n")


def small_embedding(folder: Path) -> None:
    made.write(folder / "config.json", json.dumps({"vocab_size": 11}))
    made.write(folder / "vocab.txt", (folder / "vocab.txt").read_text() + "unused\nnever\n")


def other_model(folder: Path) -> None:
    made.write(folder / "config.json", json.dumps({"vocab_size": 50257}))


FAULTS: list[tuple[Callable[[Path], None], set[str]]] = [
    (strange_words, {"unknown-tokens"}),
    (latin, {"text-encoding"}),
    (empty, {"text-empty"}),
    (leaked, {"split-leak"}),
    (small_embedding, {"vocabulary-mismatch"}),
    (other_model, {"vocabulary-mismatch"}),
]


def test_sound_text_is_not_accused_of_anything(tmp_path: Path) -> None:
    made.text(tmp_path)
    report = validate(tmp_path, Settings(embedding_rows=64))
    assert report.problems == [] and report.format == "text"
    assert report.splits == {"train": 1800, "val": 450}


@every_case(("fault", "expected"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_fault_is_found_and_nothing_else(fault: Callable[[Path], None], expected: set[str], tmp_path: Path) -> None:
    made.text(tmp_path)
    fault(tmp_path)
    assert codes(tmp_path) == expected


def test_ids_beyond_the_vocabulary_are_found_before_they_kill_a_gpu(tmp_path: Path) -> None:
    np.random.default_rng(0).integers(0, 11, 5000).astype("<u2").tofile(tmp_path / "train.bin")
    made.write(tmp_path / "vocab.txt", "\n".join(f"word{number}" for number in range(11)))
    assert codes(tmp_path) == set()
    assert codes(tmp_path, embedding_rows=10) == {"token-out-of-range", "vocabulary-mismatch"}


def test_a_hugging_face_tokenizer_with_added_tokens_is_compared_with_the_model(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    theirs = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "whale": 1, "sea": 2}, unk_token="[UNK]"))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    theirs.add_tokens(["<new>"])
    theirs.save(str(tmp_path / "tokenizer.json"))
    made.write(tmp_path / "train.txt", "whale sea whale <new>\n" * 50)
    assert codes(tmp_path, embedding_rows=64) == set()
    assert codes(tmp_path, embedding_rows=3) == {"token-out-of-range", "vocabulary-mismatch"}
    made.write(tmp_path / "train.txt", "whale sea kraken\n" * 50)
    assert codes(tmp_path) == {"unknown-tokens"}
