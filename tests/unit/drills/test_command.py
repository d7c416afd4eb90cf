from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from holdfast.drills.command import command_for, name_of
from holdfast.errors import UsageError


def says_hello() -> None:
    print("hello")


class Trainer:
    def train(self) -> None: ...

    @staticmethod
    def alone() -> None:
        print("alone")


def needs_more(folder: Path) -> None: ...


def test_a_function_at_the_top_of_a_module_is_called_in_another_process() -> None:
    for function, said in ((says_hello, "hello"), (Trainer.alone, "alone")):
        answer = subprocess.run(command_for(function), capture_output=True, text=True, timeout=600, check=False)
        assert answer.stdout.strip() == said, answer.stderr
    assert name_of(says_hello) == "says_hello"


def test_a_script_runs_with_this_python_and_a_command_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert command_for(tmp_path / "train.py") == (sys.executable, str(tmp_path / "train.py"))
    assert command_for(["torchrun", "train.py"]) == ("torchrun", "train.py") and name_of(["torchrun", "train.py"]) == "train"


def test_what_no_other_process_can_find_is_refused_in_words() -> None:
    def local() -> None: ...

    for train, why in (
        (local, "inside another function"),
        (lambda: None, "a lambda has no name"),
        (Trainer().train, "a method of an object"),
        (needs_more, "it needs folder"),
        (partial(needs_more, Path()), "is in no module"),
        ("nowhere.py", "no script nowhere.py"),
        ([], "is empty"),
    ):
        with pytest.raises(UsageError) as told:
            command_for(train)
        assert why in told.value.problem and told.value.fix
