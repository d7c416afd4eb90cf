"""Folders of the Trainer, of Accelerate and of save_pretrained, as these libraries write them: one checkpoint each."""

from __future__ import annotations

import json
import os
import random
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from every_case import every_case
from safetensors.torch import load_file

from holdfast.checkpoints.contents import Contents
from holdfast.checkpoints.formats.find import find_checkpoints
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.matching.compare import compare
from holdfast.matching.from_contents import side_of

SCRIPT = Path(__file__).parents[2] / "victims" / "saves_like_hugging_face.py"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hf")
    with pytest.MonkeyPatch.context() as patch:  # in this process: the libraries take seconds to import
        patch.setattr(sys, "argv", [str(SCRIPT), str(out)])
        for name in ("HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES"):
            patch.setenv(name, os.environ.get(name, ""))  # put back as it was: the script sets it
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return out


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies a folder, to be damaged."""

    def copy(name: str) -> Path:
        target = tmp_path / Path(name).name
        shutil.copytree(saved / name, target)
        return target

    return copy


def words(contents: Contents) -> str:
    return "\n".join(trouble.text for trouble in contents.troubles)


def test_a_trainer_folder_is_one_checkpoint_with_all_its_parts(saved: Path) -> None:
    folder = saved / "trainer/checkpoint-4"
    contents = open_checkpoint(folder)
    assert contents.state == "clean" and contents.producer == "transformers" and contents.notes == []
    tree = contents.tree
    assert set(tree) >= {"model", "optimizer", "scheduler", "rng", "trainer_state", "config", "training_args"}
    assert tree["trainer_state"]["global_step"] == 4 and tree["config"]["n_embd"] == 16
    assert tree["optimizer"]["param_groups"][0]["initial_lr"] == pytest.approx(5e-5)
    assert "transformers" in contents.versions and "transformers.training_args.TrainingArguments" in contents.needs_code
    assert {info.path.name for info in contents.files} == {path.name for path in folder.iterdir()}
    assert contents.size == sum(path.stat().st_size for path in folder.iterdir())


def test_two_checkpoints_of_one_training_fit_and_only_their_progress_differs(saved: Path) -> None:
    one, other = (side_of(open_checkpoint(saved / "trainer" / name)) for name in ("checkpoint-2", "checkpoint-4"))
    found = compare(one, other)
    assert found.fits and found.verdict == "fits as it is"
    assert [difference.kind for difference in found.differences] in ([], ["optimizer-setting"])  # the rate that moves on
    assert any(note.startswith("step ") for note in found.notes)


def test_every_tensor_of_a_joined_folder_points_to_its_own_bytes(saved: Path) -> None:
    folder = saved / "trainer/checkpoint-4"
    contents = open_checkpoint(folder)
    weights = load_file(folder / "model.safetensors")
    moments = torch.load(folder / "optimizer.pt", weights_only=True)["state"][3]["exp_avg_sq"]
    wanted = {f"model.{name}": value for name, value in weights.items()} | {"optimizer.state.3.exp_avg_sq": moments}
    by_name = {tensor.name: tensor for tensor in contents.tensors}
    assert len(by_name) == len(contents.tensors) and contents.tree["optimizer"]["state"][3]["exp_avg_sq"] in contents.tensors
    for name, value in wanted.items():
        storage = contents.storages[by_name[name].storage]
        data = storage.file.read_bytes()[storage.offset : storage.offset + storage.size]
        assert data == value.numpy().tobytes(), name


@every_case("name", ["plain", "shards"])
def test_save_pretrained_is_weights_and_config_whole_or_in_shards(saved: Path, name: str) -> None:
    contents = open_checkpoint(saved / name)
    assert contents.state == "clean" and contents.producer == "transformers" and not contents.notes
    assert {"model", "config"} <= set(contents.tree) and "optimizer" not in contents.tree
    whole = load_file(saved / "plain/model.safetensors")
    assert {tensor.name for tensor in contents.tensors} == {f"model.{key}" for key in whole}


@every_case("name", ["state", "state-pickled"])
def test_accelerate_states_are_recognised(saved: Path, name: str) -> None:
    contents = open_checkpoint(saved / name)
    assert contents.state == "clean" and contents.producer == "accelerate" and contents.notes == []
    assert set(contents.tree) == {"model", "optimizer", "scheduler", "rng_0", "custom_checkpoint_0"}
    assert contents.tree["custom_checkpoint_0"] == {"seen": 3} and contents.tree["rng_0"]["step"] == 0
    assert contents.tree["model"]["weight"].shape == (4, 4)


def test_an_output_folder_lists_its_checkpoints_and_the_final_model(saved: Path) -> None:
    found = [str(path.relative_to(saved)) for path in find_checkpoints(saved)]
    assert found == ["plain", "shards", "state", "state-pickled", "trainer/checkpoint-2", "trainer/checkpoint-4", "trainer"]


@every_case("name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"])
@every_case("share", [0.0, 0.3, 0.99])
def test_a_part_that_is_empty_or_cut_is_named(saved: Path, tmp_path: Path, name: str, share: float) -> None:
    folder = tmp_path / "checkpoint-4"
    shutil.copytree(saved / "trainer/checkpoint-4", folder)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(share * len(data))])
    contents = open_checkpoint(folder)
    assert contents.state == "torn" and {trouble.where for trouble in contents.troubles} == {name}
    assert words(contents).startswith(f"{name}: ") and all(trouble.fix for trouble in contents.troubles)


@pytest.mark.parametrize("name", ["trainer_state.json", "config.json"])
def test_a_settings_file_that_is_cut_anywhere_is_never_clean(copied: Callable[[str], Path], name: str) -> None:
    folder = copied("trainer/checkpoint-4")
    data = (folder / name).read_bytes()
    whole = len(data.rstrip())
    for length in range(0, whole, 83):
        (folder / name).write_bytes(data[:length])
        contents = open_checkpoint(folder)
        assert contents.state == "torn" and f"{name} is truncated or damaged" in words(contents), length


def test_a_save_that_ended_before_its_last_file_is_interrupted(copied: Callable[[str], Path]) -> None:
    folder = copied("trainer/checkpoint-4")
    (folder / "trainer_state.json").unlink()
    contents = open_checkpoint(folder)
    assert contents.state == "torn" and "trainer_state.json, which the Trainer writes last, is missing" in words(contents)


def test_a_missing_part_that_others_imply_is_a_note(copied: Callable[[str], Path]) -> None:
    folder = copied("trainer/checkpoint-4")
    (folder / "optimizer.pt").unlink()
    contents = open_checkpoint(folder)
    assert contents.state == "clean"  # `save_only_model` leaves it out on purpose
    assert contents.notes == ["trainer_state.json says step 4, but optimizer state is missing: a resume would start it fresh"]
    (folder / "rng_state.pth").rename(folder / "rng_state_2.pth")
    assert any("random state of rank 0, rank 1 is missing" in note for note in open_checkpoint(folder).notes)


def test_a_folder_without_weights_is_torn(copied: Callable[[str], Path]) -> None:
    folder = copied("trainer/checkpoint-4")
    (folder / "model.safetensors").unlink()
    contents = open_checkpoint(folder)
    assert contents.state == "torn" and "no weights" in words(contents)


def test_weights_that_are_there_twice_are_read_as_the_library_reads_them(copied: Callable[[str], Path]) -> None:
    folder = copied("plain")
    torch.save({"other": torch.ones(2)}, folder / "pytorch_model.bin")
    contents = open_checkpoint(folder)
    assert contents.state == "clean" and "other" not in contents.tree["model"]
    assert "model.safetensors is read, not pytorch_model.bin" in contents.notes[0]


def test_an_adapter_is_weights_with_a_config_of_its_own(tmp_path: Path, saved: Path) -> None:
    shutil.copy(saved / "state/model.safetensors", tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8, "peft_version": "0.15.0"}))
    contents = open_checkpoint(tmp_path)
    assert contents.state == "clean" and contents.tree["adapter_config"]["r"] == 8 and contents.versions["peft"] == "0.15.0"


def test_sharded_states_of_accelerate_lie_in_folders_of_their_own(tmp_path: Path, saved: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": {"a": torch.ones(3)}}, checkpoint_id=tmp_path / "pytorch_model_fsdp_0")
    dcp.save({"optimizer": {"a": torch.zeros(3)}}, checkpoint_id=tmp_path / "optimizer_0")
    shutil.copy(saved / "state/random_states_0.pkl", tmp_path)
    contents = open_checkpoint(tmp_path)
    assert contents.state == "clean" and contents.tree["model"]["model"]["a"].shape == (3,)
    assert contents.tree["optimizer"]["optimizer"]["a"].name == "optimizer.optimizer.a"
    (tmp_path / "pytorch_model_fsdp_0/.metadata").unlink()
    contents = open_checkpoint(tmp_path)
    assert contents.state == "torn" and words(contents).startswith("pytorch_model_fsdp_0: the folder has no index")


def test_what_is_written_while_a_log_holds_nan_is_read(copied: Callable[[str], Path]) -> None:
    folder = copied("trainer/checkpoint-4")
    state = json.loads((folder / "trainer_state.json").read_text())
    state["log_history"].append({"loss": float("nan"), "step": 5})
    (folder / "trainer_state.json").write_text(json.dumps(state))
    assert open_checkpoint(folder).state == "clean"


def test_settings_changed_at_random_never_raise(copied: Callable[[str], Path]) -> None:
    chance = random.Random(0)
    folder = copied("trainer/checkpoint-4")
    for name in ("optimizer.pt", "rng_state.pth", "training_args.bin"):
        (folder / name).unlink()
    for _ in range(150):
        name = chance.choice(("trainer_state.json", "config.json"))
        whole = (folder / name).read_bytes()
        data = bytearray(whole)
        for _ in range(chance.choice((1, 3, 9))):
            at = chance.randrange(len(data))
            data[at : at + chance.choice((0, 1, 6))] = bytes(
                chance.choices(b'{}[]",:0123nulltrue.e\xff\\u', k=chance.choice((0, 1, 3)))
            )
        (folder / name).write_bytes(data)
        contents = open_checkpoint(folder)
        if contents.state == "clean":
            json.loads(data)
        (folder / name).write_bytes(whole)
