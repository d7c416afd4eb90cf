from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from every_case import every_case

from holdfast.supervisor import facts


@every_case(
    ("command", "name"),
    [
        ("python train.py --lr 1", "train"),
        ("python -u src/fit_model.py", "fit_model"),
        ("python -m my.package.train --x", "train"),
        ("torchrun --nproc-per-node 2 train.py", "train"),
        ("python -m torch.distributed.run --nproc_per_node=2 train.py", "train"),
        ("bash run.sh", "run"),
        ("./go", "go"),
        ("/usr/bin/my-tool --fast", "my-tool"),
        ("../..", "run"),
    ],
)
def test_a_run_is_named_after_its_script(command: str, name: str) -> None:
    assert facts.default_name(command.split(), "1115-031205") == f"{name}-1115-031205"


def test_a_shell_line_is_not_taken_for_a_script() -> None:
    assert facts.default_name(["bash", "-c", "cd x && python train.py"], "t") == "bash-t"


@every_case(
    ("command", "size"),
    [
        ("torchrun --nproc-per-node 2 train.py", 2),
        ("torchrun --nproc_per_node=4 --nnodes 2 train.py", 8),
        ("torchrun train.py", 1),
        ("torchrun --nproc-per-node gpu train.py", None),
        ("torchrun --nnodes 1:4 train.py", None),
        ("torchrun train.py --nnodes 8", 1),
        ("python -m torch.distributed.run --nproc-per-node=3 train.py", 3),
        ("accelerate launch --num_processes 2 train.py", 2),
        ("accelerate launch train.py", None),
        ("python train.py", None),
    ],
)
def test_the_number_of_ranks_is_read_from_the_launchers_options(command: str, size: int | None) -> None:
    assert facts.world_size_of(command.split(), {}) == size


def test_the_number_of_ranks_is_read_from_the_environment() -> None:
    assert facts.world_size_of(["python", "train.py"], {"WORLD_SIZE": "16"}) == 16
    assert facts.world_size_of(["python", "train.py"], {"WORLD_SIZE": "many"}) is None


def test_the_packages_are_those_of_the_commands_environment() -> None:
    assert facts.package_versions([sys.executable, "train.py"])["torch"] == version("torch")
    assert facts.package_versions(["no-such-program"]) == {}


def test_git_says_commit_and_whether_files_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert facts.git_state() is None
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "train.py").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "1"]):
        subprocess.run([*git, *words], check=True)
    state = facts.git_state()
    assert state is not None and len(state["commit"]) == 40 and state["dirty"] is False
    (tmp_path / "train.py").write_text("2")
    assert (facts.git_state() or {})["dirty"] is True


def test_without_git_there_are_just_no_facts_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert facts.facts_later([sys.executable]).get("git") is None
