"""A training whose weights are NaN in spite of every guard never costs its user the good checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from holdfast_run import VICTIMS, typed
from watched_training import WarmPython

from holdfast.signals.run_folder import RunFolder

VICTIM = str(VICTIMS / "saves_nan.py")


def train(warm: WarmPython, folder: Path, how: str, policy: str, rules: str = "") -> list[dict[str, Any]]:
    run = RunFolder.create(folder / "runs", "run")
    env = {"HOLDFAST_RUN": str(run.path), "HOLDFAST_POLICY": policy, "HOLDFAST_RULES": rules, "HOLDFAST_DEBUG": "raise"}
    assert "the end" in warm.run(folder, VICTIM, how, **env)
    return list(run.journal)


def about_checkpoints(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row.get("code") == "checkpoint-non-finite"]


@pytest.mark.parametrize("policy", ["guard", pytest.param("heal", marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["path", "atomic", "whole", "optimizer"])
def test_the_good_checkpoint_stays_byte_for_byte(warm: WarmPython, tmp_path: Path, how: str, policy: str) -> None:
    findings = about_checkpoints(train(warm, tmp_path, how, policy))
    assert (tmp_path / "best.pt").read_bytes() == (tmp_path / "best.copy").read_bytes()
    assert sorted(path.name for path in tmp_path.glob("best.non-finite*")) == [
        "best.non-finite-step-50.pt",
        "best.non-finite-step-60.pt",
    ]
    assert [one["step"] for one in findings] == [50, 60] and {one["severity"] for one in findings} == {"critical"}
    assert findings[0]["evidence"]["tensors"][0]["nan"] > 0


def test_the_journal_says_in_words_what_was_kept_and_what_is_not_finite(warm: WarmPython, tmp_path: Path) -> None:
    train(warm, tmp_path, "path", "guard")
    shown = typed("journal", "-t", str(tmp_path / "runs/run"), folder=tmp_path)
    assert shown.returncode == 1  # something critical
    assert "best.pt is kept; the new state was saved as best.non-finite-step-50.pt" in shown.stdout
    assert "model.2.weight (16 NaN of 16)" in shown.stdout


@pytest.mark.parametrize(("policy", "rules"), [("observe", ""), ("guard", "checkpoint-non-finite=observe")])
def test_without_the_rule_it_is_saved_as_asked_and_told(warm: WarmPython, tmp_path: Path, policy: str, rules: str) -> None:
    findings = about_checkpoints(train(warm, tmp_path, "path", policy, rules))
    assert torch.load(tmp_path / "best.pt", weights_only=True)["model"]["2.weight"].isnan().all()
    assert [*tmp_path.glob("best.non-finite*")] == [] and [one["step"] for one in findings] == [50, 60]


def test_a_file_that_was_opened_by_the_script_is_written_and_told(warm: WarmPython, tmp_path: Path) -> None:
    findings = about_checkpoints(train(warm, tmp_path, "file", "guard"))
    assert torch.load(tmp_path / "best.pt", weights_only=True)["model"]["2.weight"].isnan().all()
    assert "opened the file itself" in findings[0]["evidence"]["note"]


LIGHTNING = """
import logging, math, warnings
warnings.filterwarnings("ignore")
import lightning, torch
from pathlib import Path
from torch.utils.data import DataLoader, TensorDataset
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

def fit(epochs, path):
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    model = Model()
    trainer.fit(model, DataLoader(TensorDataset(torch.randn(32, 4)), 8), ckpt_path=path)
    trainer.save_checkpoint("last.ckpt")
    return trainer, model

fit(2, None)
trainer, model = fit(4, "last.ckpt")
Path("copy.ckpt").write_bytes(Path("last.ckpt").read_bytes())
with torch.no_grad():
    model.layer.weight.fill_(math.nan)
trainer.save_checkpoint("last.ckpt")
"""
TRAINER = """
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

class Text(Dataset):
    tokens = torch.randint(0, 64, (20, 12), generator=torch.Generator().manual_seed(1))
    def __len__(self):
        return 20
    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}

def train(epochs, **how):
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    arguments = TrainingArguments(output_dir="out", num_train_epochs=epochs, per_device_train_batch_size=4,
                                  save_strategy="epoch", report_to=[], disable_tqdm=True, use_cpu=True)
    Trainer(model, arguments, train_dataset=Text()).train(**how)

train(2)
train(3, resume_from_checkpoint=True)
"""


def run_script(warm: WarmPython, folder: Path, text: str) -> list[dict[str, Any]]:
    (folder / "fit.py").write_text(text)
    run = RunFolder.create(folder / "runs", "run", command=["python", "fit.py"])
    env = {"HOLDFAST_RUN": str(run.path), "HOLDFAST_POLICY": "guard", "HOLDFAST_DEBUG": "raise"}
    warm.run(folder, str(folder / "fit.py"), **env)
    return list(run.journal)


def test_lightning_is_seen_resumed_and_protected(warm: WarmPython, tmp_path: Path) -> None:
    rows = run_script(warm, tmp_path, LIGHTNING)
    assert (tmp_path / "last.ckpt").read_bytes() == (tmp_path / "copy.ckpt").read_bytes()
    (beside,) = tmp_path.glob("last.non-finite*.ckpt")
    (row,) = (one for one in rows if one.get("event") == "resumed")
    assert (row["at"], row["optimizer"], row["weights"]["missing"]) == (8, "loaded", 0)
    assert (row["recording"], row["before"]["recording"], row["before"]["step"]) == ("rank-0.1", "rank-0", 8)
    assert [one["diverted_to"] for one in rows if one.get("event") == "diverted"][-1] == str(beside)


def test_the_trainer_of_hugging_face_is_seen_to_resume(warm: WarmPython, tmp_path: Path) -> None:
    rows = run_script(warm, tmp_path, TRAINER)
    (row,) = (one for one in rows if one.get("event") == "resumed")
    assert (row["at"], row["optimizer"], row["scheduler"], row["weights"]["missing"]) == (10, "loaded", "loaded", 0)
    assert Path(row["path"]).parent.name == "checkpoint-10"
    assert not [one for one in rows if one["kind"] == "finding"]
