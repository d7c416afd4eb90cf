"""Checkpoints of Lightning's own trainer: opened, summarised, compared, loaded and chosen from. Its import takes seconds."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from holdfast.checkpoints.contents import TensorInfo
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.summary import summarise
from holdfast.cli.app import app
from holdfast.matching.compare import compare
from holdfast.matching.from_contents import side_of
from holdfast.matching.load import load


@pytest.fixture(scope="module")
def lightning_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that Lightning's own trainer wrote."""
    import lightning
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
    from torch.utils.data import DataLoader, TensorDataset

    class Model(lightning.LightningModule):
        def __init__(self, width: int = 8, lr: float = 0.01) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layer = nn.Linear(4, width)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_loss", self.layer(batch[0]).square().mean())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("lightning")
    data = DataLoader(TensorDataset(torch.randn(8, 4)), 4)
    keep = ModelCheckpoint(folder, monitor="val_loss", save_last=True, save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", callbacks=[keep, EarlyStopping("val_loss")], **quiet)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Model(), data, data)
    return folder / "last.ckpt"


def test_a_lightning_checkpoint_is_recognised_with_its_version(lightning_file: Path) -> None:
    contents = open_checkpoint(lightning_file)
    assert contents.state == "clean" and contents.producer == "lightning" and contents.versions["lightning"].startswith("2.")
    assert contents.tree["global_step"] == 4 and contents.tree["hyper_parameters"] == {"width": 8, "lr": 0.01}
    assert isinstance(contents.tree["state_dict"]["layer.weight"], TensorInfo) and contents.tree["optimizer_states"]


def test_its_step_epoch_metrics_and_settings_are_those_that_lightning_wrote(lightning_file: Path) -> None:
    contents = open_checkpoint(lightning_file)
    told, truth = summarise(contents), torch.load(lightning_file, weights_only=False)
    assert (told.step, told.epoch) == (truth["global_step"], truth["epoch"]) == (4, 1)
    (keep,) = (state for name, state in truth["callbacks"].items() if name.startswith("ModelCheckpoint"))
    assert told.metric == ("val_loss", pytest.approx(float(keep["current_score"])))
    assert told.metrics["best_val_loss"] == pytest.approx(float(keep["best_model_score"]))
    assert told.holds == {"weights", "optimizer", "scheduler", "settings"} and not told.weights_only
    assert told.settings == {"width": 8, "lr": 0.01}
    assert list(told.model_keys) == ["layer.weight", "layer.bias"] and told.parameters == 40
    assert told.versions["lightning"] == truth["pytorch-lightning_version"]


def test_two_checkpoints_of_one_training_fit_and_only_their_progress_differs(lightning_file: Path) -> None:
    one, other = sorted(lightning_file.parent.glob("epoch*.ckpt"))
    found = compare(side_of(open_checkpoint(one)), side_of(open_checkpoint(other)))
    assert found.fits and found.verdict == "fits as it is"
    assert [difference.kind for difference in found.differences] in ([], ["optimizer-setting"])  # the rate that moves on
    assert any(note.startswith("step ") for note in found.notes)


def test_weights_optimizer_and_scheduler_are_loaded_into_the_bare_network(lightning_file: Path) -> None:
    truth = torch.load(lightning_file, weights_only=False)
    network = nn.Linear(4, 8)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loaded = load(network, lightning_file, optimizer=optimizer, scheduler=schedule)
    assert all(torch.equal(value, truth["state_dict"][f"layer.{name}"]) for name, value in network.state_dict().items())
    assert loaded.renamed == "removing the prefix layer."
    assert (loaded.step, loaded.settings["width"], schedule.last_epoch) == (4, 8, 2)
    moments = truth["optimizer_states"][0]["state"][0]["exp_avg"]
    assert torch.equal(optimizer.state[network.weight]["exp_avg"], moments)


def test_a_lightning_run_goes_on_and_the_printed_lines_lower_its_learning_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
            self.log("train_loss", loss)
            return loss

        def validation_step(self, _batch: Any, _: int) -> None:
            self.log("val_acc", (0.5, 0.6, 0.62, 0.001)[self.current_epoch])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 100)}

    monkeypatch.chdir(tmp_path)
    inputs = torch.randn(32, 4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long()), 8)
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    saving = ModelCheckpoint(monitor="val_acc", mode="max", save_top_k=-1, save_last=True)
    fit = lightning.Trainer(max_epochs=4, num_sanity_val_steps=0, logger=CSVLogger("."), callbacks=[saving], **quiet)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit.fit(Module(), loader, loader)

    choose = ["checkpoints", "choose", "lightning_logs/version_0"]
    found = json.loads(CliRunner().invoke(app, [*choose, "--json"]).stdout)
    assert found["recommended"] == found["options"][0]["kind"] == "best"
    assert Path(found["options"][0]["checkpoint"]).name == "epoch=2-step=12.ckpt"
    assert {Path(one["path"]).name: one["why"] for one in found["rejected"]}[
        "last.ckpt"
    ] == "the same step as epoch=3-step=16.ckpt"
    text = CliRunner().invoke(app, choose).stdout
    printed = text[text.index("in the script") :].split("\n\n")[0].splitlines()[1:]
    program = "\n".join(line[2:] for line in printed).replace(", ...)", ", max_epochs=4, logger=False, **quiet)")
    namespace = {"L": lightning, "quiet": quiet, "model": Module(), "loader": loader}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(program.replace("trainer.fit(model", "trainer.fit(model, loader, loader"), namespace)
    resumed: Any = namespace["trainer"]
    assert resumed.global_step == 16 and resumed.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.0075)
    assert resumed.lr_scheduler_configs[0].scheduler.base_lrs == [pytest.approx(0.0075)]
    assert resumed.default_root_dir.endswith("version_0-resumed")
