"""Two stages are one training: what is frozen stays as it is, and a run resumes bit for bit in either of them."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("scipy", reason="needs pip install 'holdfast[segment]'")
sys.path.insert(0, str(Path(__file__).parents[3] / "trainings"))
from loop_segment import SmallEncoder, SmallTask, draw_discs, settings_of

from holdfast.train.devices import Place
from holdfast.train.loop import Training
from holdfast.train.segment.model import Segmenter


class Stopped(Exception):
    pass


class StoppingTask(SmallTask):
    """Raises before a batch, and counts the scales that the loss sees."""

    stop_at = 0

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        if self.batches + 1 == self.stop_at:
            raise Stopped
        return super().loss(model, batch)


@pytest.fixture(scope="module")
def discs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_discs(tmp_path_factory.mktemp("discs"))


def training(folder: Path, data: Path, *, stop_at: int = 0, **settings: Any) -> Training:
    chosen = settings_of({"data": str(data), "project": str(folder), "name": "run", "policy": "observe", **settings})
    task = StoppingTask(chosen, Place(torch.device("cpu")))
    task.stop_at = stop_at
    return Training(task, chosen, Place(torch.device("cpu")))


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "metrics.csv").open()))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, discs: Path) -> Training:
    made = training(tmp_path_factory.mktemp("whole"), discs)
    made.fit()
    return made


@pytest.mark.parametrize("stop_at", [pytest.param(3, id="in stage 1", marks=pytest.mark.slow), pytest.param(8, id="in stage 2")])
def test_a_run_that_was_stopped_resumes_bit_for_bit(tmp_path: Path, discs: Path, whole: Training, stop_at: int) -> None:
    with pytest.raises(Stopped):
        training(tmp_path / "stopped", discs, stop_at=stop_at, save_minutes=1e-6).fit()
    resumed = training(tmp_path / "resumed", discs)
    resumed.fit(tmp_path / "stopped" / "run")
    one, other = whole.model.state_dict(), resumed.model.state_dict()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    tables = [rows(Path(folder) / "run") for folder in (whole.settings.project, resumed.settings.project)]
    first, second = ([(row["epoch"], row["iou"], row["lr"]) for row in table] for table in tables)
    assert first == second


def test_stage_1_leaves_the_encoder_as_it_is(tmp_path: Path, discs: Path) -> None:
    run = training(tmp_path, discs, epochs=1, stage1_epochs=1)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    run.fit()
    changed = [name for name, value in run.model.state_dict().items() if not torch.equal(value, before[name])]
    assert changed and not [name for name in changed if name.startswith("encoder.")], "nor its running means"


def test_every_stage_has_its_own_warm_up_and_learning_rate(tmp_path: Path, discs: Path) -> None:
    values = {"epochs": 20, "stage1_epochs": 8, "lr0": 0.01, "stage2_lr": 0.002, "min_lr": 1e-5, "warmup_epochs": 2}
    schedule = training(tmp_path, discs, **values).schedule
    rates = [0.01 * schedule.factor(update) for update in range(60)]  # 3 updates an epoch
    assert rates[0] == pytest.approx(0.01 / 6) and max(rates[:24]) == pytest.approx(0.01)
    assert rates[24] == pytest.approx(0.002 / 6) and max(rates[24:]) == pytest.approx(0.002)
    assert rates[-1] == pytest.approx(1e-5, abs=1e-5) and rates[23] < 0.0005


def test_the_encoder_is_unfrozen_from_its_last_layer_on() -> None:
    model = Segmenter(SmallEncoder(), experts=2, deep_supervision=True)
    trained = []
    for layers in range(4):
        model.train()
        assert model.train_only(layers), "others are trained than before"
        assert not model.train_only(layers), "nothing changes the second time"
        trained.append([next(stage.parameters()).requires_grad for stage in model.encoder.stages])
        assert [stage.training for stage in model.encoder.stages] == trained[-1]
    assert trained == [[False] * 3, [False, False, True], [False, True, True], [True] * 3]


@pytest.mark.parametrize(("epoch", "layers"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3), (9, 3)])
def test_progressive_unfreezing_takes_the_first_half_of_stage_2(discs: Path, epoch: int, layers: int) -> None:
    chosen = settings_of({"data": str(discs), "epochs": 10, "stage1_epochs": 2, "progressive_unfreeze": True})
    task = SmallTask(chosen, Place(torch.device("cpu")))
    model = task.model()
    task.begin_epoch(model, epoch)
    assert sum(next(stage.parameters()).requires_grad for stage in model.encoder.stages) == layers
