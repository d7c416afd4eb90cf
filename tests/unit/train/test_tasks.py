"""Every task comes from one table; what it needs is checked before anything is imported or written."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.train.settings import DetectSettings, SegmentSettings, TrainSettings
from holdfast.train.tasks import TASKS, task_of


@pytest.mark.parametrize(("settings", "package"), [(DetectSettings, "transformers"), (SegmentSettings, "timm")])
def test_a_missing_package_is_named_with_its_extra(
    settings: type[TrainSettings], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else find(name, *more))
    with pytest.raises(UsageError, match=f"needs {package}") as caught:
        TASKS[settings.TASK].check(settings(data="nowhere"))
    assert caught.value.fix == f"pip install 'holdfast[{settings.TASK}]'"


@pytest.mark.parametrize("kind", [DetectSettings, SegmentSettings])
def test_a_run_knows_its_task(kind: Any, tmp_path: Path) -> None:
    from holdfast.train.settings import read_yaml

    kind(data="d").write(tmp_path / "settings.yaml")
    assert task_of(read_yaml(tmp_path / "settings.yaml")).settings is kind
