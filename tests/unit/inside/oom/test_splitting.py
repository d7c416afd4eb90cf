"""Batches of every make are cut along their samples."""

from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from every_case import every_case
from torch.nn.utils.rnn import pack_sequence

from holdfast.inside.oom.splitting import cut, size_of

Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    name: str


def x(samples: int = 7) -> torch.Tensor:
    return torch.arange(samples * 3.0).reshape(samples, 3)


IMAGES = [torch.ones(3, 4 + number, 5) for number in range(7)]
BOXES = [{"boxes": torch.ones(number, 4), "labels": torch.ones(number)} for number in range(7)]


@every_case(
    ("batch", "size"),
    [
        (x(), 7),
        ([x(), torch.ones(7)], 7),
        ({"x": x(), "anchors": torch.ones(9, 4), "y": torch.ones(7), "scale": torch.tensor(2.0)}, 7),
        (((x(), x()), torch.ones(7)), 7),
        (((x(), x()), (x(), x())), 7),
        (({"ids": x()}, {"labels": torch.ones(7)}), 7),
        (Pair(x(), torch.ones(7)), 7),
        (Sample(x(), "a"), 7),
        (UserDict(ids=x(), mask=torch.ones(7, 3)), 7),
        (np.ones((7, 2)), 7),
        ((IMAGES, BOXES), 7),
        ((tuple(IMAGES), tuple(BOXES)), 7),
        (BOXES, 7),
        (["a", "b"], 2),
        ({"x": x(), "words": ["a"] * 7, "classes": ["cat", "dog"]}, 7),
        (3, None),
        ({"scale": torch.tensor(1.0)}, None),
        (pack_sequence([torch.ones(3), torch.ones(2)]), None),
    ],
    ids=lambda value: type(value).__name__ if value is not None and not isinstance(value, int) else str(value),
)
def test_the_size_of_a_batch_is_found(batch: Any, size: int | None) -> None:
    assert size_of(batch) == size


def test_seven_samples_in_two_parts_are_four_and_three() -> None:
    parts = list(cut({"x": x(), "words": list("abcdefg"), "weights": torch.ones(2), "step": 5}, 7, 2))
    assert [samples for _, samples in parts] == [4, 3]
    assert torch.equal(torch.cat([part["x"] for part, _ in parts]), x())
    assert parts[1][0]["words"] == ["e", "f", "g"]
    assert all(part["weights"].shape == (2,) and part["step"] == 5 for part, _ in parts)


def test_parts_are_views_and_keep_their_kind() -> None:
    whole = x(4)
    for make in (lambda: Pair(whole, [1, 2, 3, 4]), lambda: Sample(whole, "a"), lambda: UserDict(x=whole), lambda: [whole, "a"]):
        batch = make()
        first = next(cut(batch, 4, 2))[0]
        assert type(first) is type(batch)
        held = next(iter(first.values())) if isinstance(first, UserDict) else getattr(first, "image", None)
        held = first[0] if held is None else held
        assert held.shape == (2, 3) and held.data_ptr() == whole.data_ptr()
    assert whole.shape == (4, 3)


def test_lists_of_images_and_boxes_are_cut_together() -> None:
    parts = [part for part, _ in cut((IMAGES, BOXES), 7, 3)]
    assert [len(images) for images, _ in parts] == [len(boxes) for _, boxes in parts] == [3, 2, 2]
    assert parts[2][1][1] is BOXES[6]


def test_two_samples_in_a_tuple_of_two_fields_are_not_mistaken_for_it() -> None:
    parts = [part for part, _ in cut((x(2), {"y": torch.ones(2)}), 2, 2)]
    assert [(a.shape, b["y"].shape) for a, b in parts] == [((1, 3), (1,))] * 2


def test_there_are_never_more_parts_than_samples() -> None:
    assert [samples for _, samples in cut(x(3), 3, 8)] == [1, 1, 1]
