from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stand_in import compile_library

from holdfast.environment.torch_facts import TorchFacts, read_torch

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Makes a shared library from a C file beside this one."""

    def make(source: str, name: str) -> Path:
        return compile_library(source, tmp_path_factory.mktemp("library") / name)

    return make


@pytest.fixture(scope="session")
def nvml_folder(compiled: Callable[[str, str], Path]) -> Path:
    """A folder with a `libnvidia-ml.so.1` that answers what a file says."""
    return compiled("fake_nvml.c", "libnvidia-ml.so.1").parent


@pytest.fixture(scope="session")
def real_torch() -> TorchFacts:
    """What the torch of this machine reports; asked once, it takes seconds."""
    return read_torch()


@pytest.fixture
def cards(nvml_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put cards into this machine, as far as NVIDIA's library reports."""

    def put(answers: str) -> None:
        file = tmp_path / "nvml-answers"
        file.write_text(answers)
        monkeypatch.setenv("FAKE_NVML", str(file))
        monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_folder))

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return put


@pytest.fixture
def torch_is(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the children import another torch: one built as the test says."""

    def put(**told: Any) -> None:
        monkeypatch.setenv("FAKE_TORCH", json.dumps(told))
        monkeypatch.setenv("PYTHONPATH", str(HERE / "fake_torch"))

    return put
