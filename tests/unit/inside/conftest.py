"""Searches for living models go through all objects of the process: those that torch itself has made are set apart."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="package", autouse=True)
def only_our_own_objects() -> None:
    """What was there before the tests is neither searched nor collected again: with it, each search takes half a second."""
    import torch._dynamo  # noqa: F401 - what the first step of an optimizer would import

    gc.collect()
    gc.freeze()
