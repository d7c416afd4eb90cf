"""Fixtures for tests that search the living objects of their process: only their own are searched, with one thread."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def only_our_own_objects() -> None:
    """What was there before the tests is neither searched nor collected again: with it, each search takes half a second.

    For each file anew: tests of other folders run in between and import what they need.
    """
    import torch._dynamo  # noqa: F401 - what the first step of an optimizer would import

    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small sums are slower with several threads, and far slower beside other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
