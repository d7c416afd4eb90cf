"""What Holdfast wraps in a training process is what it says it wraps: no more, no less, and not much."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.inside.taps.registry import ALWAYS, COLLECTIVES, GUARD, TAPS, page

DOCS = Path(__file__).parents[2] / "docs"
AT_MOST = 25
LOOK = """
import json, sys, types
import torch, torch.distributed, socket, http.client, sqlite3
import holdfast
from pathlib import Path

OURS = str(Path(holdfast.__file__).parent)


def wrapped(owner, seen):
    for name, value in list(vars(owner).items()):
        if type(value) is types.FunctionType and value.__code__.co_filename.startswith(OURS):
            place = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
            seen.add(f"{place}.{name}")


model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
seen = set()
for module in list(sys.modules.values()):
    name = getattr(module, "__name__", "") or ""
    if isinstance(module, types.ModuleType) and not name.startswith(("holdfast", "sitecustomize")) and name != "__main__":
        wrapped(module, seen)
        for kind in [one for one in vars(module).values() if issubclass(type(one), type)]:
            if not str(kind.__module__).startswith("holdfast"):
                wrapped(kind, seen)
print(json.dumps(sorted(seen)))
"""


def wrapped_in(folder: Path, policy: str) -> set[str]:
    (folder / "train.py").write_text(LOOK)
    words = [sys.executable, "-m", "holdfast", "run", "--policy", policy, "--name", "a", sys.executable, "train.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("policy", ["observe", pytest.param("guard", marks=pytest.mark.slow)])
def test_a_live_process_holds_the_wrappers_that_are_listed(tmp_path: Path, policy: str) -> None:
    found = wrapped_in(tmp_path, policy)
    listed = {_full_name(tap.target) for tap in TAPS if tap.when in (ALWAYS, *([GUARD] if policy == "guard" else []))}
    assert found - listed == set(), "wrapped, and not listed"
    assert listed - found == set(), "listed, and not wrapped"
    if policy == "observe":
        assert len(found) <= AT_MOST


def _full_name(target: str) -> str:
    """By the module that a class was written in."""
    owner = pkgutil.resolve_name(target.rpartition(".")[0])
    name = target.rpartition(".")[2]
    return f"{owner.__module__}.{owner.__qualname__}.{name}" if isinstance(owner, type) else target


def test_nothing_of_the_standard_library_s_network_or_of_a_tracker_is_wrapped() -> None:
    assert not [tap.target for tap in TAPS if tap.target.startswith(("socket", "http", "sqlite3", "mlflow", "wandb"))]
    assert len(COLLECTIVES) == len(set(COLLECTIVES))


def test_the_page_shows_the_list() -> None:
    text = (DOCS / "capture.md").read_text(encoding="utf-8")
    assert page(text) == text, "make docs"
