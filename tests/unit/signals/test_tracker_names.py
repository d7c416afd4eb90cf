from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.signals.tracker_names import not_installed, read_trackers


def test_each_tracker_is_taken_once_and_a_wrong_name_gets_the_nearest() -> None:
    assert read_trackers(["mlflow", "tensorboard", "mlflow"]) == ("mlflow", "tensorboard")
    with pytest.raises(UsageError) as wrong:
        read_trackers(["tensorbord"])
    assert wrong.value.fix == "--to tensorboard"


def test_a_folder_that_a_tracker_made_here_is_not_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("wandb", "trackio"):
        (tmp_path / name).mkdir()
    (tmp_path / "trackio" / "__init__.py").touch()
    assert not_installed(["tensorboard", "trackio", "wandb"]) == ["wandb"]
