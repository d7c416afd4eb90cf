"""`holdfast checkpoints choose` on real files: what a user with a dead run at eight in the morning is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast as library

VICTIM = Path(__file__).parents[2] / "victims" / "collapses_after_a_change.py"
Command = Callable[..., Any]


class Training:
    """A small real training; `save` writes what people write."""

    def __init__(self, folder: str = "ckpts") -> None:
        torch.manual_seed(0)
        self.folder = Path(folder)
        self.folder.mkdir(parents=True)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.model(torch.randn(4, 8)).sum().backward()
        self.optimizer.step()

    def save(self, step: int, *, name: str | None = None, weights_only: bool = False, **metrics: float) -> Path:
        path = self.folder / (name or f"step_{step}.pt")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step, **metrics}
        torch.save(self.model.state_dict() if weights_only else state, path)
        return path

    def save_broken(self, step: int, **metrics: float) -> Path:
        """Save with a NaN in it."""
        kept = self.model[0].weight.detach().clone()
        with torch.no_grad():
            self.model[0].weight[3, 2] = float("nan")
        path = self.save(step, **metrics)
        with torch.no_grad():
            self.model[0].weight.copy_(kept)
        return path


def cut(path: Path, share: float = 0.5) -> None:
    os.truncate(path, int(path.stat().st_size * share))


@pytest.fixture
def answer(holdfast: Command) -> Callable[..., dict[str, Any]]:
    """The answer as JSON; `code` is how the command must end."""

    def ask(*words: str, code: int = 0) -> dict[str, Any]:
        done = holdfast("checkpoints", "choose", *words, "--json")
        assert done.code == code, done.err
        found: dict[str, Any] = json.loads(done.out)
        return found

    return ask


def taken(found: dict[str, Any]) -> tuple[str, str | None]:
    """The kind and the file that are recommended."""
    path = found["options"][0]["checkpoint"]
    assert found["options"][0]["kind"] == found["recommended"]
    return found["recommended"], Path(path).name if path else None


def test_a_newest_one_that_is_torn_is_rejected_and_named(answer: Any, holdfast: Command) -> None:
    training = Training()
    for step in (1000, 2000, 3000):
        training.save(step)
    cut(training.folder / "step_3000.pt")
    found = answer("ckpts")
    assert taken(found) == ("newest", "step_2000.pt")
    assert found["options"][0]["settings"] == {} and found["options"][0]["folder"] == "ckpts-resumed"
    assert [(Path(one["path"]).name, one["state"]) for one in found["rejected"]] == [
        ("step_3000.pt", "torn"), ("step_1000.pt", "clean"),
    ]  # fmt: skip
    text = holdfast("checkpoints", "choose", "ckpts").out
    assert text.startswith("resume from step 2,000: ckpts/step_2000.pt\n")
    assert "step_3000.pt  torn" in text and max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("share", [0.0, 0.3, 0.97])
def test_however_short_it_was_cut_the_newest_is_never_recommended(answer: Any, share: float) -> None:
    training = Training()
    training.save(1000)
    cut(training.save(2000), share)
    assert taken(answer("ckpts")) == ("newest", "step_1000.pt")


def test_the_best_one_with_a_nan_in_it_is_never_offered(answer: Any) -> None:
    training = Training()
    training.save(1000, val_acc=0.60)
    training.save_broken(2000, val_acc=0.99)
    training.save(3000, val_acc=0.62)
    found = answer("ckpts")
    assert taken(found) == ("newest", "step_3000.pt")
    assert all("step_2000" not in (one["checkpoint"] or "") for one in found["options"])
    assert "NaN or Inf in model.0.weight" in found["rejected"][0]["why"]


def test_a_training_that_died_of_nan_goes_back_to_its_best_with_a_lower_learning_rate(answer: Any) -> None:
    training = Training()
    training.save(1000, val_acc=0.60)
    training.save(2000, val_acc=0.64)
    training.save_broken(3000, val_acc=0.1)
    found = answer("ckpts")
    assert taken(found) == ("best", "step_2000.pt")
    assert found["options"][0]["settings"]["lr"]["value"] == 0.75
    assert [one["code"] for one in found["trouble"] if one["lasts"]] == ["non-finite-weights"]


def test_a_collapse_that_only_the_checkpoints_tell_of_is_seen(answer: Any, holdfast: Command) -> None:
    training = Training()
    for step, value in ((1000, 0.61), (2000, 0.64), (3000, 0.002)):
        training.save(step, val_acc=value)
    found = answer("ckpts")
    assert taken(found) == ("best", "step_2000.pt")
    assert found["options"][0]["settings"]["warmup_epochs"] == {"op": "set", "value": 5}
    text = holdfast("checkpoints", "choose", "ckpts").out
    exec(printed_lines(text), {"holdfast": library, "model": training.model, "optimizer": training.optimizer})
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(0.0075), "the lines that it prints do what it says"


def test_weights_alone_are_said_to_be_weights_alone(answer: Any, holdfast: Command) -> None:
    training = Training()
    training.save(1000, weights_only=True)
    found = answer("ckpts")
    assert taken(found) == ("newest", "step_1000.pt")
    assert "warmup_epochs" in found["options"][0]["settings"]
    text = holdfast("checkpoints", "choose", "ckpts").out
    assert "weights only" in text and 'holdfast.load(model, "ckpts/step_1000.pt")\n' in text


def test_if_none_is_clean_it_says_so_and_ends_with_one(answer: Any, holdfast: Command) -> None:
    training = Training()
    cut(training.save(1000))
    training.save_broken(2000)
    found = answer("ckpts", code=1)
    assert taken(found) == ("fresh", None)
    assert set(found["options"][0]["settings"]) == {"lr", "warmup_epochs", "clip_norm"}
    done = holdfast("checkpoints", "choose", "ckpts")
    assert done.code == 1 and done.out.startswith("start fresh")


def test_an_empty_folder_and_a_wrong_path_end_with_two_and_help(holdfast: Command) -> None:
    Path("empty").mkdir()
    done = holdfast("checkpoints", "choose", "empty")
    assert done.code == 2 and "empty" in done.err and "Traceback" not in done.err
    Training("outputs/first").save(10, name="model.pt")
    done = holdfast("checkpoints", "choose", "outputs/frist")
    assert done.code == 2 and "outputs/first/model.pt" in done.err


def test_a_file_stands_for_the_folder_that_it_lies_in(answer: Any) -> None:
    training = Training()
    training.save(1000)
    cut(training.save(2000))
    assert taken(answer("ckpts/step_2000.pt")) == ("newest", "step_1000.pt")


def test_of_two_metrics_the_one_that_is_asked_for_decides(answer: Any, holdfast: Command) -> None:
    training = Training()
    for step, accuracy, loss in ((1000, 0.70, 0.5), (2000, 0.60, 0.4), (3000, 0.65, 0.45)):
        training.save(step, val_acc=accuracy, val_loss=loss)
    training.save_broken(4000)
    assert taken(answer("ckpts")) == ("best", "step_1000.pt")
    assert taken(answer("ckpts", "--metric", "val_loss")) == ("best", "step_2000.pt")
    assert taken(answer("ckpts", "--metric", "VAL-LOSS", "--higher-is-better")) == ("best", "step_1000.pt")
    done = holdfast("checkpoints", "choose", "ckpts", "--metric", "val_f1")
    assert done.code == 2 and "val_acc, val_loss" in done.err


def test_a_metric_of_which_nobody_knows_the_direction_is_asked_about(answer: Any, holdfast: Command) -> None:
    training = Training()
    for step, value in ((1000, 7.0), (2000, 5.0), (3000, 6.0)):
        training.save(step, val_thing=value)
    training.save_broken(4000)
    done = holdfast("checkpoints", "choose", "ckpts")
    assert done.code == 0 and "val_thing" in done.err and "step 3,000" in done.out.splitlines()[0]
    assert taken(answer("ckpts", "--higher-is-better")) == ("best", "step_1000.pt")
    assert taken(answer("ckpts", "--lower-is-better")) == ("best", "step_2000.pt")


def test_checkpoints_of_several_runs_are_not_mixed(holdfast: Command) -> None:
    for version in (0, 1):
        training = Training(f"logs/version_{version}/checkpoints")
        training.save(100 * (version + 1))
        (training.folder.parent / "metrics.csv").write_text("epoch,step,val_acc\n0,99,0.5\n")
    done = holdfast("checkpoints", "choose", "logs")
    assert done.code == 2 and "logs/version_0" in done.err and "logs/version_1" in done.err
    assert holdfast("checkpoints", "choose", "logs/version_1").out.startswith("resume from step 200")


def test_a_log_beside_the_checkpoints_is_read(answer: Any) -> None:
    training = Training("run/checkpoints")
    for step in range(1000, 8000, 1000):
        training.save(step)
    values = (0.5, 0.6, 0.64, 0.62, 0.58, 0.5, 0.002)
    rows = "".join(f"{index},{1000 * (index + 1) - 1},{value},0.001\n" for index, value in enumerate(values))
    Path("run/metrics.csv").write_text(f"epoch,step,val_acc,lr-AdamW\n{rows}")
    found = answer("run")
    assert taken(found) == ("best", "step_3000.pt")
    lr = {"op": "multiply", "value": 0.75, "was": 0.01, "becomes": 0.0075}
    assert found["options"][0]["settings"]["lr"] == lr, "the rate that the checkpoint brings back"
    assert found["options"][-1]["settings"]["lr"]["was"] == 0.001, "a fresh start has the rate of the log"
    assert found["options"][0]["folder"] == "run-resumed" and found["history"] == ["run/metrics.csv"]
    assert taken(answer("run/checkpoints")) == ("best", "step_3000.pt")


@pytest.mark.parametrize("where", ["run/train.log", "run/logs/train.log"])
def test_whatever_log_diagnose_reads_is_read_here_too(answer: Any, where: str) -> None:
    training = Training("run/checkpoints")
    for step in range(100, 1000, 100):
        training.save(step)
    losses = [2.0 / (1 + step / 100) if step <= 500 else float("nan") for step in range(0, 1000, 10)]
    Path(where).parent.mkdir(exist_ok=True)
    Path(where).write_text("".join(f"step {10 * place} | loss {value:.4f}\n" for place, value in enumerate(losses)))
    found = answer("run/checkpoints")
    assert taken(found) == ("best", "step_500.pt") and found["history"] == [where]
    assert [one["code"] for one in found["trouble"]] == ["non-finite-loss"]


def test_a_log_that_counts_something_else_than_the_checkpoints_is_not_used(answer: Any) -> None:
    training = Training("run/checkpoints")
    for step in (1000, 2000):
        training.save(step)
    losses = [f"epoch {epoch}: loss {1.0 / epoch if epoch < 8 else 'nan'}\n" for epoch in range(1, 12)]
    Path("run/train.log").write_text("".join(losses))
    found = answer("run")
    assert taken(found) == ("newest", "step_2000.pt") and found["history"] == []


def test_the_store_of_holdfast_goes_on_from_its_newest_and_the_printed_lines_restore_it(holdfast: Command) -> None:
    training = Training()
    store = library.CheckpointStore("kept", best="val_acc")
    for step, value in ((10, 0.5), (20, 0.7), (30, 0.6)):
        store.save(step, model=training.model, optimizer=training.optimizer, metrics={"val_acc": value}, wait=True)
    store.close()
    cut(Path("kept/step-000030/weights.safetensors"))
    text = holdfast("checkpoints", "choose", "kept").out
    assert text.startswith("resume from step 20: kept/step-000020")
    kept = training.model[0].weight.detach().clone()
    with torch.no_grad():
        training.model[0].weight.zero_()
    exec(printed_lines(text), {"holdfast": library, "model": training.model, "optimizer": training.optimizer})
    assert torch.equal(training.model[0].weight, kept)
    assert not Path("kept-resumed/checkpoints/step-000020").exists(), "nothing was saved by being restored"


def printed_lines(text: str) -> str:
    """The Python that is to be put into the script."""
    return "\n".join(line[2:] for line in text[text.index("in the script") :].split("\n\n")[0].splitlines()[1:])


# Runs of Holdfast's own


def started(*words: str, victim: Path = VICTIM) -> subprocess.Popen[str]:
    """`holdfast run` on a victim, as a process of its own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_") and key != "PYTHONPATH"}
    command = [sys.executable, "-m", "holdfast.cli.main", "run", "--name", "night", "--", sys.executable, str(victim), *words]
    return subprocess.Popen(
        command, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


@pytest.mark.slow
def test_a_run_that_collapsed_after_a_change_goes_back_to_before_it(answer: Any, holdfast: Command) -> None:
    process = started("260")
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    for words in (("runs/night",), ("saved",), ("night",), ("-t", "night")):
        found = answer(*words)
        assert taken(found) == ("before-change", "0250.pt"), "the journal tells of the change, the tables of the accuracy"
        rate = found["options"][0]["settings"]["lr"]
        assert rate["value"] <= 0.75 and rate["was"] == 0.5 and rate["becomes"] == 0.5 * rate["value"]
        assert "deep supervision" in " ".join(found["options"][0]["because"])
        assert found["options"][0]["folder"] == "saved-resumed"
    assert holdfast("checkpoints", "choose", "night", "-t", "night").code == 2
    text = holdfast("checkpoints", "choose").out
    assert "holdfast run --name night-resumed -- " in text and max(map(len, text.split("in the script")[0].splitlines())) <= 100


@pytest.fixture
def killed() -> Iterator[None]:
    """A healthy run that was killed between two saves."""
    process = started("9999", "0.3")
    assert process.stdout is not None
    try:
        while "250" not in process.stdout.readline():
            assert process.poll() is None, "the training ended before it could be killed"
        time.sleep(0.1)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=600)
    yield


@pytest.mark.usefixtures("killed")
def test_a_healthy_run_that_was_killed_goes_on_from_its_newest_with_nothing_changed(answer: Any) -> None:
    newest = sorted(path.name for path in Path("saved").iterdir())[-1]
    found = answer("runs/night")
    assert taken(found) == ("newest", newest)
    assert found["options"][0]["settings"] == {}
    assert "its process is gone" in found["options"][0]["because"][0]


def test_a_file_that_was_saved_over_until_the_kill_is_the_newest_of_its_run(answer: Any, holdfast: Command) -> None:
    process = started("1000000", victim=VICTIM.with_name("saves_over_itself.py"))
    assert process.stdout is not None
    try:
        while "saved 60" not in process.stdout.readline():
            assert process.poll() is None, "the training ended before it could be killed"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=600)
    listed = {Path(row["path"]).name: row for row in json.loads(holdfast("checkpoints", "list", "--json").out)}
    assert set(listed) == {"first.pt", "last.pt"}, "the journal names the folder"
    if listed["last.pt"]["state"] == "torn":  # it was being written
        Path("out/last.pt").unlink()
        assert taken(answer()) == ("newest", "first.pt")
        return
    for words in ((), ("night",), ("runs/night",), ("out",)):
        found = answer(*words)
        assert taken(found) == ("newest", "last.pt") and found["options"][0]["step"] == listed["last.pt"]["step"] >= 60, words


@pytest.mark.slow
def test_what_another_training_wrote_after_the_end_of_a_run_is_not_its_own(answer: Any, holdfast: Command) -> None:
    process = started("40", victim=VICTIM.with_name("saves_over_itself.py"))
    printed, _ = process.communicate(timeout=600)
    assert process.returncode == 0, printed
    assert taken(answer("night")) == ("newest", "last.pt")
    assert holdfast("checkpoints", "compare", "out/first.pt", "night").code == 0
    torch.save({"model": {"weight": torch.zeros(3)}, "step": 99}, "out/last.pt")
    assert taken(answer("night")) == ("newest", "first.pt")


# Other people's trainers


@pytest.mark.timeout(180)
def test_a_hugging_face_run_goes_on_and_the_printed_lines_lower_its_learning_rate(holdfast: Command, answer: Any) -> None:
    transformers = pytest.importorskip("transformers")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            out = self.layer(x)
            return {"loss": nn.functional.cross_entropy(out, labels), "logits": out}

    values = iter([0.5, 0.6, 0.002] * 2)
    data = [{"x": x, "labels": (x.sum() > 0).long()} for x in torch.randn(80, 4)]
    often: dict[str, Any] = {
        "eval_strategy": "steps",
        "eval_steps": 5,
        "save_steps": 5,
        "logging_steps": 1,
        "save_total_limit": 5,
    }
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "per_device_train_batch_size": 8, "max_steps": 15, **often}
    about = {"train_dataset": data, "eval_dataset": data, "compute_metrics": lambda _: {"accuracy": next(values)}}
    arguments = transformers.TrainingArguments(output_dir="out", learning_rate=0.01, **quiet)
    transformers.Trainer(model=Model(), args=arguments, **about).train()

    found = answer("out")
    assert taken(found) == ("best", "checkpoint-10")
    assert found["metric"] == {"name": "eval_accuracy", "lower_is_better": False}
    cut(Path("out/checkpoint-10/model.safetensors"))
    assert taken(answer("out")) == ("best", "checkpoint-5"), "the newest earlier clean one"
    text = holdfast("checkpoints", "choose", "out").out
    program = printed_lines(text).replace("output_dir=", "learning_rate=0.01, **quiet, output_dir=").replace(", ...)", ")")
    names = ("Trainer", "TrainingArguments", "TrainerCallback")
    namespace = {"quiet": quiet, "model": Model(), "about": about, **{name: getattr(transformers, name) for name in names}}
    exec(program.replace("Trainer(args=args", "Trainer(model=model, args=args, **about"), namespace)
    rows = namespace["trainer"].state.log_history  # type: ignore[attr-defined]
    rates = {row["step"]: row["learning_rate"] for row in rows if "learning_rate" in row}
    assert rates[7] == pytest.approx(0.75 * rates[5] * (15 - 6) / (15 - 4)), "a straight line to nothing, three quarters as steep"
    assert Path("out-resumed").is_dir() and sorted(path.name for path in Path("out").iterdir())[0] == "checkpoint-10"
