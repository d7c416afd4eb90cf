"""What the callbacks of all trainers share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from holdfast.checkpoints.clean import first_clean
from holdfast.integrations.trainer_run import TrainerRun, split_of
from holdfast.signals.run_folder import RunFolder


def test_the_split_of_a_metric_is_told_by_its_name() -> None:
    names = ("val_loss", "eval_accuracy", "validation/f1", "test_acc", "loss", "train/loss", "evaluated")
    assert [split_of(name) for name in names] == ["val", "val", "val", "test", "train", "train", "train"]


def test_the_newest_checkpoint_that_is_whole_is_taken_and_the_torn_one_before_it_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.pt" for number in range(3)]
    for path in paths:
        torch.save({"model": torch.nn.Linear(64, 64).state_dict()}, path)
    paths[2].write_bytes(paths[2].read_bytes()[:9000])
    torch.save({"model": {"weight": torch.full((4,), torch.nan)}}, paths[1])
    with pytest.warns(UserWarning, match="is not used.*0.pt is used instead") as warned:
        assert first_clean(reversed(paths)) == str(paths[0])
    assert len(warned) == 2
    assert first_clean(()) is None


def test_a_checkpoint_is_listed_when_it_was_written_again_and_not_when_it_was_there_before(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    trainer, folder, old = TrainerRun(folder=tmp_path / "runs", name="a"), tmp_path / "last", tmp_path / "old.pt"
    torch.save(model.state_dict(), old)
    folder.mkdir()
    run = trainer.begin(model, torch.optim.SGD(model.parameters()), stop=None)
    trainer.has_listed(old)
    for _ in range(2):
        save_file(model.state_dict(), folder / "model.safetensors")
        trainer.wrote(folder, old)
        trainer.wrote(folder, old)
    trainer.end()
    journal = RunFolder.open(Path(run.folder)).journal
    assert [row["path"] for row in journal if row.get("event") == "saved"] == [str(folder)] * 2


def test_a_training_that_was_stopped_because_it_is_broken_ends_with_its_exit_code_at_the_end_of_the_trainer() -> None:
    ended = TrainerRun()
    ended.end()
    ended.exit_code = 1
    with pytest.raises(SystemExit, match="1"):
        ended.end()
