"""`holdfast checkpoints compare`: the verdict comes first, user code fails in words, one training's checkpoints do not differ."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case
from torch import nn

CODE = """
import torch
from torch import nn

print("your code prints while it is imported")


class Net(nn.Module):
    def __init__(self, classes=80, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)) for _ in range(depth))
        self.fc = nn.Linear(8, classes)


def three():
    print("and while the model is built")
    return Net(3)


def wants_real_numbers():
    model = Net()
    assert model.fc.weight.sum().item() == model.fc.weight.sum().item()
    return model


def broken(): return [1, 2][7]
def no_model(): return 4
def needs(classes): return Net(classes)


ready = Net()
number = 3
"""


@pytest.fixture(autouse=True)
def code(here: Path) -> Iterator[None]:
    """A module of the user's in the folder, as fresh as in a new process."""
    (here / "my_model.py").write_text(CODE)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name in ("my_model", "exits"):
            del sys.modules[name]


def make(classes: int = 80) -> nn.Module:
    torch.manual_seed(0)
    body = nn.ModuleList(nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)) for _ in range(2))
    return nn.ModuleDict({"blocks": body, "fc": nn.Linear(8, classes)})


@pytest.fixture
def last(here: Path) -> Path:
    model = nn.DataParallel(make())
    optimizer = torch.optim.AdamW(model.parameters())
    args = {"lr": 1e-3, "mean": [0.5, 0.5, 0.5]}
    torch.save(
        {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "args": args}, here / "last.pt"
    )
    return Path("last.pt")


def test_it_fits_after_a_rename_and_the_line_that_is_told_loads_it(holdfast: Any, last: Path) -> None:
    done = holdfast("checkpoints", "compare", "last.pt", "--with", "my_model:Net")
    lines = done.out.splitlines()
    assert (done.code, lines[0]) == (0, "fits after removing the prefix module.")
    assert "your code prints" in done.err and "your code prints" not in done.out
    call = next(line.strip() for line in lines if line.strip().startswith("model.load_state_dict"))
    model = make()
    exec(call, {"model": model, "torch": torch})
    assert torch.equal(model["fc"].weight, torch.load(last, weights_only=True)["state_dict"]["module.fc.weight"])


def test_another_head_is_the_first_line_and_ends_with_one(holdfast: Any, last: Path) -> None:
    done = holdfast("checkpoints", "compare", "last.pt", "--with", "my_model:three")
    lines = [line.rstrip() for line in done.out.splitlines()]
    assert (done.code, lines[0]) == (1, "does not fit: the head fc has 80 classes in the checkpoint and 3 in the model")
    assert lines[-1] == '  holdfast.load(model, "last.pt", leave_out=("fc",))'
    assert max(map(len, lines)) <= 100


def test_json_holds_all_of_it_on_stdout_alone(holdfast: Any, last: Path) -> None:
    done = holdfast("checkpoints", "compare", "last.pt", "--with", "my_model:three", "--json")
    row = json.loads(done.out)
    assert (done.code, row["fits"], row["rename"]["python"]) == (1, False, 'k.removeprefix("module.")')
    assert row["shapes"] == {"fc.weight": [[80, 8], [3, 8]], "fc.bias": [[80], [3]]}
    assert row["differences"][0]["kind"] == "head" and row["calls"]


@every_case("name", ["my_model:ready", "my_model:wants_real_numbers", "my_model:Net"])
def test_a_class_an_instance_and_a_function_that_wants_real_numbers_all_do(name: str, holdfast: Any, last: Path) -> None:
    assert holdfast("checkpoints", "compare", "last.pt", "--with", name).code == 0


@every_case(
    ("name", "words", "fix"),
    [
        ("my_model:broken", "failed in your code: IndexError: list index out of range", "build the model"),
        ("my_model:no_model", "gave a int, not a model", "returns an nn.Module"),
        ("my_model:number", "is a int, not a function, a class or a model", "what builds the model"),
        ("my_model:needs", "needs classes", "YAML"),
        ("my_model:tree", "my_model has no tree", "three"),
        ("my_modle:Net", "No module named 'my_modle'", "folder of your code"),
        ("exits:Net", "SystemExit", "must not train when imported"),
    ],
)
def test_errors_in_user_code_are_told_in_words(name: str, words: str, fix: str, holdfast: Any, last: Path, here: Path) -> None:
    (here / "exits.py").write_text("import sys\nsys.exit('usage: exits.py DATA')\n")
    done = holdfast("checkpoints", "compare", "last.pt", "--with", name)
    assert done.code == 2 and words in done.err and fix in done.err
    assert "Traceback" not in done.err and "site-packages" not in done.err
    if "broken" in name:
        assert "my_model.py:" in done.err and "return [1, 2][7]" in done.err


def test_a_yaml_file_names_the_model_its_arguments_and_the_settings(holdfast: Any, last: Path, here: Path) -> None:
    (here / "ours.yaml").write_text("model: my_model:Net\narguments:\n  classes: 80\nmean: [0.485, 0.456, 0.406]\nlr: 1e-4\n")
    done = holdfast("checkpoints", "compare", "last.pt", "--with", "ours.yaml")
    assert done.code == 1  # every shape fits, and the answers would be wrong
    assert done.out.startswith("the weights fit after removing the prefix module., but inputs are normalised differently (mean")
    assert "set mean to [0.5, 0.5, 0.5], as it was trained" in done.out and "different learning rate" in done.out


@every_case(
    ("text", "words", "fix"),
    [
        ("modell: my_model:Net\n", "names no model: it has modell", "write model for modell"),
        ("lr: 3\n", "names no model: it has lr", "add a line"),
        ("model: my_model:Net\narguments:\n  clases: 3\n", "takes no argument clases", "did you mean classes"),
        ("model: my_model:Net\narguments: 3\n", "not a table of names", "arguments"),
        ("model: [\n", "is not YAML", "correct"),
    ],
)
def test_a_yaml_file_that_is_off_says_what_and_what_to_write(
    text: str, words: str, fix: str, holdfast: Any, last: Path, here: Path
) -> None:
    (here / "ours.yaml").write_text(text)
    done = holdfast("checkpoints", "compare", "last.pt", "--with", "ours.yaml")
    assert done.code == 2 and words in done.err and fix in done.err


def test_a_wrong_path_lists_what_is_nearby(holdfast: Any, last: Path) -> None:
    for words in (("lost.pt", "--with", "my_model:Net"), ("last.pt", "--with", "lost.pt")):
        done = holdfast("checkpoints", "compare", *words)
        assert done.code == 2 and "last.pt" in done.err


def test_a_file_that_holds_no_weights_cannot_be_compared(holdfast: Any, last: Path, here: Path) -> None:
    (here / "text.pt").write_text("hello")
    assert holdfast("checkpoints", "compare", "text.pt", "--with", "my_model:Net").code == 2
    torch.save({"epoch": 3}, here / "empty.pt")
    done = holdfast("checkpoints", "compare", "empty.pt", "--with", "my_model:Net")
    assert done.code == 1 and done.out.startswith("does not fit: the checkpoint holds no weights of a model")


def test_a_torn_file_is_told_before_anything_else(holdfast: Any, last: Path, here: Path) -> None:
    (here / "cut.pt").write_bytes(last.read_bytes()[:-3000])
    done = holdfast("checkpoints", "compare", "cut.pt", "--with", "last.pt")
    assert done.code == 1 and done.out.startswith("does not fit: cut.pt is torn")


def test_two_checkpoints_are_two_arguments(holdfast: Any, last: Path) -> None:
    assert (
        holdfast("checkpoints", "compare", "last.pt", "last.pt").out
        == holdfast("checkpoints", "compare", "last.pt", "--with", "last.pt").out
    )
    for words in ((), ("last.pt", "--with", "my_model:Net")):
        done = holdfast("checkpoints", "compare", "last.pt", *words)
        assert done.code == 2 and "holdfast checkpoints compare last.pt OTHER" in done.err
