"""`holdfast.toml` and HOLDFAST_* variables: what is in force without a flag."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.project_settings import with_project
from holdfast.cli.run import option_names
from holdfast.errors import UsageError

TOML = '[run]\npolicy = "guard"\nrestarts = 5\nto = ["tensorboard", "mlflow"]\n'


def test_a_flag_comes_before_a_variable_before_the_file() -> None:
    Path("holdfast.toml").write_text(TOML)
    words = with_project(["--restarts=1"], option_names(), {"HOLDFAST_POLICY": "heal"})
    assert words == ["--policy=heal", "--to=tensorboard", "--to=mlflow", "--restarts=1"]
    assert with_project(["--to=wandb"], option_names(), {})[-1] == "--to=wandb"
    assert "--to=mlflow" not in with_project(["--to=wandb"], option_names(), {})


def test_in_a_run_its_own_variables_are_no_settings_for_another(tmp_path: Path) -> None:
    assert with_project([], option_names(), {"HOLDFAST_RUN": "runs/a", "HOLDFAST_POLICY": "heal"}) == []


def test_the_file_at_the_top_of_the_project_holds_for_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("holdfast.toml").write_text(TOML)
    (tmp_path / "scripts" / "other" / ".git").mkdir(parents=True)
    monkeypatch.chdir("scripts")
    assert "--policy=guard" in with_project([], option_names(), {})
    monkeypatch.chdir("other")
    assert with_project([], option_names(), {}) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [("[run]\npolcy = 1", "did you mean policy?"), ("[rnu]\n", "under [run]"), ("policy", "write it as TOML")],
)
def test_what_the_file_must_not_say_is_an_error_with_the_fix(text: str, words: str) -> None:
    Path("holdfast.toml").write_text(text)
    with pytest.raises(UsageError) as wrong:
        with_project([], option_names(), {})
    assert words in wrong.value.fix


def test_doctor_prints_what_is_in_force(holdfast: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("holdfast.toml").write_text(TOML)
    monkeypatch.setenv("HOLDFAST_HANG_AFTER", "30")
    out = " ".join(holdfast("doctor", "--only", "settings").out.split())
    assert "policy guard (holdfast.toml)" in out and "hang-after 30 (HOLDFAST_HANG_AFTER)" in out and "budget 1%" in out
