"""The faults of machine, loader, process, disk, checkpoints, trackers and ranks do what they say: else a drill scores nothing."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from watched_training import WarmPython

from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.verify import verify
from holdfast.drills.fault import CannotHappen
from holdfast.drills.faults import find
from holdfast.drills.plan import Plan, Planned
from holdfast.memory_errors import place_of_memory_text

VICTIM = str(Path(__file__).parents[2] / "victims" / "drilled.py")
AT, STEPS = 4, 12


class Drilled:
    """Runs the victim with one fault."""

    def __init__(self, python: WarmPython, folder: Path) -> None:
        self._python, self.folder = python, folder

    def __call__(
        self,
        code: str,
        *,
        workers: int = 0,
        strength: float | None = None,
        rank: int = 0,
        url: str = "",
        limit: int = 20,
        saves: str = "",
        withdrawn: str = "",
    ) -> tuple[int, dict[str, Any]]:
        """Its exit code and what it told; the injection is noted in any case, and why it does not count."""
        drill = self.folder / "drill"
        drill.mkdir()
        plan = Plan(faults=(Planned(code=code, step=AT, strength=strength),), folder=drill)
        words = [str(workers), *([url] if url else [])]
        more = {"RANK": str(rank), "LIMIT": str(limit), "SAVES": saves}
        end, printed = self._python.end_of(self.folder, VICTIM, *words, **plan.as_environment(), **more)
        self.printed = printed
        lines = [line for line in printed.splitlines() if line.startswith("{")]
        notes = [json.loads(line) for line in (drill / "drill.jsonl").read_text().splitlines()]
        events = ["injected", *(["cannot-happen"] if withdrawn else [])]
        assert [(note["event"], note["fault"]) for note in notes] == [(event, code) for event in events], printed
        assert not withdrawn or withdrawn in notes[1]["why"]
        assert notes[0]["step"] >= AT
        return end, json.loads(lines[-1]) if lines else {}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    one = WarmPython(tmp_path_factory.mktemp("warm"))
    yield one
    one.close()


@pytest.fixture
def drilled(python: WarmPython, tmp_path: Path) -> Drilled:
    return Drilled(python, tmp_path)


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_a_slow_loader_holds_up_every_batch_to_the_end(drilled: Drilled) -> None:
    code, told = drilled("slow-loader", strength=0.04)
    assert code == 0 and min(gaps(told["updates"])[AT:]) >= 0.04


def test_a_slow_worker_is_the_only_slow_one(drilled: Drilled) -> None:
    code, told = drilled("slow-worker", workers=2, strength=0.08)
    last = {number: [time for worker, time in told["read"] if worker == number][-3:] for number in (0, 1)}
    assert code == 0 and min(gaps(last[1])) >= 0.08
    assert [number for number, _ in told["read"]] == [0, 1] * (STEPS // 2)


def test_a_killed_worker_leaves_its_training_without_it(drilled: Drilled) -> None:
    code, _ = drilled("worker-killed", workers=2)
    said = ("is killed by signal: Killed", "exited unexpectedly")  # torch has two ways of noticing it, whichever is first
    assert code == 1 and any(one in drilled.printed for one in said), drilled.printed


HANGS = [
    ("worker-hung", 2),
    *(pytest.param(code, 0, marks=pytest.mark.slow) for code in ("deadlock", "infinite-loop", "lock-held-in-c")),
]


@pytest.mark.parametrize(("code", "workers"), HANGS)
def test_what_hangs_does_not_come_back_by_itself(drilled: Drilled, code: str, workers: int) -> None:
    assert drilled(code, workers=workers, limit=4) == (-signal.SIGALRM, {})


def test_a_stopped_process_goes_on_where_it_was(drilled: Drilled) -> None:
    begun = time.monotonic()
    code, told = drilled("process-stopped", strength=0.5)
    assert code == 0 and len(told["updates"]) == STEPS and time.monotonic() - begun >= 0.5


@pytest.mark.parametrize(("code", "rank"), [("process-killed", 0), ("rank-killed", 1), ("checkpoint-truncated", 0)])
def test_what_is_killed_gets_sigkill(drilled: Drilled, code: str, rank: int) -> None:
    assert drilled(code, rank=rank) == (-signal.SIGKILL, {})


def test_memory_of_the_machine_runs_out_with_the_error_that_torch_has_for_it(drilled: Drilled) -> None:
    code, _ = drilled("host-oom", strength=96)
    assert code == 1 and place_of_memory_text(drilled.printed) == "host", drilled.printed


def test_a_full_disk_leaves_a_useless_file_and_the_systems_error(drilled: Drilled) -> None:
    code, _ = drilled("disk-full")
    assert code == 1 and "No space left on device" in drilled.printed
    assert states(drilled.folder) == {"step-1.pt": "clean", "step-3.pt": "torn"}


@pytest.mark.parametrize("saves", ["", "through memory"])
def test_a_torn_checkpoint_is_the_newest_and_the_ones_before_are_whole(drilled: Drilled, saves: str) -> None:
    drilled("checkpoint-truncated", saves=saves)
    assert states(drilled.folder) == {"step-1.pt": "clean", "step-3.pt": "torn"}


def test_a_flipped_bit_comes_after_the_save_and_ends_the_process(drilled: Drilled) -> None:
    assert drilled("checkpoint-bit-flip") == (-signal.SIGKILL, {})
    found = states(drilled.folder)
    assert found.pop("step-3.pt") != "clean" and found == {"step-1.pt": "clean"}


def test_nan_gets_into_one_checkpoint_and_not_into_the_training(drilled: Drilled) -> None:
    code, told = drilled("checkpoint-nan-best")
    found = states(drilled.folder)
    assert code == 0 and found.pop("step-3.pt") == "non-finite" and set(found.values()) == {"clean"}
    assert all(torch.isfinite(torch.tensor(told["size"])))


def test_nan_that_the_script_replaces_before_it_saves_is_no_fault(drilled: Drilled) -> None:
    code, _ = drilled("checkpoint-nan-best", saves="repaired", withdrawn="does not hold the NaN")
    assert code == 0 and set(states(drilled.folder).values()) == {"clean"}


def states(folder: Path) -> dict[str, str]:
    return {path.name: verify(open_checkpoint(path)).state for path in sorted(folder.glob("step-*.pt"))}


class _Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_tracker_that_is_gone_has_answered_before_and_does_so_no_more(drilled: Drilled) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        code, told = drilled("tracker-gone", url=f"http://127.0.0.1:{server.server_port}/", strength=0.01)
        server.shutdown()
    assert code == 0 and told["posted"] == ["200"] * (AT - 1) + ["URLError"] * (STEPS - AT + 1)


def test_a_locked_database_is_one_that_the_script_has_open(drilled: Drilled) -> None:
    code, told = drilled("mlflow-locked", strength=1.0)
    assert code == 0 and told["written"][AT - 2 : AT + 1] == ["written", "database is locked", "database is locked"]


def test_a_delayed_rank_is_late_and_the_others_are_not_touched(drilled: Drilled) -> None:
    code, told = drilled("rank-delayed", rank=1, strength=0.05)
    assert code == 0 and min(gaps(told["updates"])[AT:]) >= 0.05


def test_one_rank_leaves_one_collective_out(drilled: Drilled) -> None:
    code, told = drilled("collective-skipped", rank=1)
    assert code == 0 and told["reduced"] == STEPS - 1


def test_the_weights_of_one_rank_become_others(drilled: Drilled, python: WarmPython, tmp_path: Path) -> None:
    code, told = drilled("ranks-apart", rank=1, strength=1.0)
    beside = tmp_path / "beside"
    beside.mkdir()
    control = json.loads(python.run(beside, VICTIM, "0").splitlines()[-1])
    assert code == 0 and told["size"][0] > 1.5 * control["size"][0]


def test_memory_of_a_card_does_not_run_out_where_there_is_none() -> None:
    context: Any = SimpleNamespace(model=torch.nn.Linear(1, 1))
    with pytest.raises(CannotHappen, match="on a GPU"):
        find("gpu-oom")().update(context)
