"""Known error texts: every one is found in what people really paste, and none in the output of a healthy training."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from every_case import every_case

from holdfast.diagnosis.error_search import Answer, search_file, search_text
from holdfast.diagnosis.failures import CODES
from holdfast.diagnosis.known_texts import FOLLOWS, KINDS, KNOWN_TEXTS
from holdfast.diagnosis.known_texts.known_text import KnownText

SAMPLES = [
    (name, text)
    for name, _, text in (
        line.partition("\t")
        for line in Path(__file__).with_name("error_texts.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
]
CORPUS = Path(__file__).parents[3].parent / "shared" / "corpus"


def first(answer: Answer) -> str | None:
    return answer.matches[0].text.name if answer.matches else None


@every_case(("name", "text"), SAMPLES, ids=[f"{name}-{place}" for place, (name, _) in enumerate(SAMPLES)])
def test_a_text_is_found_as_people_paste_it(name: str, text: str) -> None:
    assert first(search_text(text)) == name


@every_case(("name", "text"), SAMPLES, ids=[f"{name}-{place}" for place, (name, _) in enumerate(SAMPLES)])
def test_rank_prefixes_capitals_and_colours_change_nothing(name: str, text: str) -> None:
    assert first(search_text(f"[rank3]: \x1b[31m{text.upper()}\x1b[0m")) == name


@every_case("known", KNOWN_TEXTS, ids=lambda known: known.name)
def test_a_known_text_has_a_sample_a_meaning_a_fix_and_a_page(known: KnownText) -> None:
    sampled = known.is_frame or any(name == known.name for name, _ in SAMPLES)  # frames: test_error_search
    assert isinstance(known.wordings, tuple) and sampled
    assert known.means.endswith(".") and known.fix.endswith(".") and known.kind in KINDS
    assert known.page in CODES


def test_names_are_unique_and_there_are_more_than_a_hundred() -> None:
    names = [known.name for known in KNOWN_TEXTS]
    assert len(set(names)) == len(names) > 100


HEALTHY = """\
Epoch 1/10: 100%|██████████| 1000/1000 [00:12<00:00, 81.3it/s, loss=0.6413, lr=0.000145]
{'loss': 0.3121, 'grad_norm': 1.0232, 'learning_rate': 4.9e-05, 'epoch': 0.02}
step 250: train loss 2.4, val loss 2.5
val_loss: 0.123 best so far, infer time 12 ms, information gain 0.3
Loading checkpoint shards: 100%|██████████| 2/2
GPU memory: 22.1 GB allocated, 23.5 GB reserved
number of classes: 10, nan values dropped: 0
loss function: cross entropy, informative samples: 12
no error found in 120 files; 0 failed, 0 killed
saved checkpoint to runs/a/last.pt (exit code 0)
Using device: cuda (NVIDIA H100), CUDA 12.4, driver 550.54
loss weights: inflation 1.0
best_loss: inf
Epoch 00001: val_loss improved from inf to 0.43210, saving model to best.h5
best val loss: inf -> 0.4321
Config(max_grad_norm=inf, clip_grad_norm=inf, nan_to_num=True)
"""


def test_the_output_of_a_healthy_training_matches_nothing() -> None:
    assert search_text(HEALTHY).matches == ()


@pytest.mark.skipif(not CORPUS.exists(), reason="needs ../shared/corpus")
def test_logs_of_healthy_strangers_match_nothing_that_ends_a_run() -> None:
    with (CORPUS / "labels.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if "nan" not in row["labels"] and "nan" not in row["dont_care"]]
    assert len(rows) > 50
    for row in rows:
        with (CORPUS / row["file"]).open("rb") as log:
            found = [one for one in search_file(log).matches if one.text.kind >= FOLLOWS]
        assert not found, f"{row['file']}: {found[0].text.name}: {found[0].line}"
