"""Searches for living models go through all objects of the process: those that torch itself has made are set apart."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from store_loop import Loop


@pytest.fixture(scope="package", autouse=True)
def only_our_own_objects() -> None:
    """What was there before the tests is neither searched nor collected again: with it, each search takes half a second."""
    import torch._dynamo  # noqa: F401 - what the first step of an optimizer would import

    gc.collect()
    gc.freeze()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small sums are slower with several threads, and far slower beside other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def loop() -> Loop:
    """A training that the store saves."""
    return Loop()
