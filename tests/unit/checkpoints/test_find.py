"""Every checkpoint in a folder is found once, in an order that a reader expects."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.checkpoints.formats.find import by_path, find_checkpoints, search


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def found(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in find_checkpoints(folder)]


HUGGING_FACE = ("config.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")


def test_numbers_are_in_the_order_of_their_value(tmp_path: Path) -> None:
    put(tmp_path, "step-10.pt", "step-9.pt", "step-100.pt", "epoch=2-step=8.ckpt", "epoch=10-step=1.ckpt", "best.pth")
    assert found(tmp_path) == [
        "best.pth",
        "epoch=2-step=8.ckpt",
        "epoch=10-step=1.ckpt",
        "step-9.pt",
        "step-10.pt",
        "step-100.pt",
    ]


def test_numbers_and_words_in_the_same_place_can_be_ordered() -> None:
    names = ["a/1/x.pt", "a/b/x.pt", "1.pt", "a1.pt", "1a.pt", "a", "²/x.pt", "٣.pt"]
    assert len(sorted(map(Path, names), key=by_path)) == len(names)


def test_a_folder_that_is_a_checkpoint_counts_once(tmp_path: Path) -> None:
    put(tmp_path / "hf/checkpoint-20", *HUGGING_FACE)
    put(tmp_path / "hf/checkpoint-100", "config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json")
    put(tmp_path / "dcp", ".metadata", "__0_0.distcp", "__1_0.distcp")
    put(
        tmp_path / "own/step-000005",
        "weights.safetensors",
        "training.pt",
        "manifest.json",
        "shards/.metadata",
        "shards/__0_0.distcp",
    )
    put(tmp_path / "accelerate", "model.safetensors", "optimizer.bin", "random_states_0.pkl", "pytorch_model_fsdp_0/.metadata")
    put(tmp_path / "ds/global_step5", "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    assert found(tmp_path) == [
        "accelerate", "dcp", "ds/global_step5", "hf/checkpoint-20", "hf/checkpoint-100", "own/step-000005",
    ]  # fmt: skip


def test_a_final_model_and_the_checkpoints_below_it_are_all_found_the_deepest_first(tmp_path: Path) -> None:
    put(tmp_path / "out", "config.json", "model.safetensors", "training_args.bin", "mine.pt")
    put(tmp_path / "out/checkpoint-500", *HUGGING_FACE)
    assert found(tmp_path) == ["out/checkpoint-500", "out/mine.pt", "out"]
    assert found(tmp_path / "out/checkpoint-500") == ["."]


def test_a_file_is_its_own_answer(tmp_path: Path) -> None:
    put(tmp_path, "a.pt")
    assert find_checkpoints(tmp_path / "a.pt") == [tmp_path / "a.pt"] and find_checkpoints(tmp_path / "none") == []


def test_what_is_not_a_checkpoint_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, "train.log", "config.json", "data.csv", ".hidden.pt", ".git/a.pt", "env/site-packages/x.pth", "note.txt")
    (tmp_path / "folder.pt").mkdir()
    os.mkfifo(tmp_path / "pipe.pt")
    assert found(tmp_path) == []


def test_half_written_ones_are_not_listed(tmp_path: Path) -> None:
    put(tmp_path, "a.pt", "b.pt.tmp", "c.ckpt.part", "blobs/0a1b.incomplete", ".d.pt", "e.safetensors.tmp-1234", "notes.tmp.md")
    put(tmp_path / ".new-step-000012~host~77~1~1", "weights.safetensors")
    put(tmp_path / ".step-000013.4242", "weights.pt")
    put(tmp_path / "tmp-checkpoint-500", "model.safetensors", "config.json")
    assert found(tmp_path) == ["a.pt"]


def test_links_lead_nowhere_twice(tmp_path: Path) -> None:
    put(tmp_path, "runs/a/epoch-1.ckpt", "elsewhere/b.pt")
    (tmp_path / "runs/a/again").symlink_to(tmp_path / "runs")
    (tmp_path / "runs/Latest").symlink_to("a")
    (tmp_path / "runs/a/Last.ckpt").symlink_to("epoch-1.ckpt")
    (tmp_path / "runs/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs/gone.pt").symlink_to("nowhere")
    assert found(tmp_path / "runs") == ["a/epoch-1.ckpt", "linked/b.pt"]


def test_two_names_of_one_file_are_both_listed(tmp_path: Path) -> None:
    put(tmp_path, "epoch-1.pt")
    os.link(tmp_path / "epoch-1.pt", tmp_path / "best.pt")
    assert found(tmp_path) == ["best.pt", "epoch-1.pt"]


def test_a_folder_that_may_not_be_read_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path, "a.pt", "closed/b.pt")
    (tmp_path / "closed").chmod(0)
    try:
        assert "a.pt" in found(tmp_path)
    finally:
        (tmp_path / "closed").chmod(0o755)


def test_the_search_is_bounded_and_says_so(tmp_path: Path) -> None:
    put(tmp_path, *(f"{number}.pt" for number in range(30)))
    assert search(tmp_path, most=30).complete and len(search(tmp_path).paths) == 30
    short = search(tmp_path, most=10)
    assert not short.complete and len(short.paths) == 10
    deep = tmp_path / "deep" / "/".join("d" * 60)
    deep.mkdir(parents=True)
    put(deep, "a.pt")
    assert not search(tmp_path).complete


def test_a_batch_that_was_saved_for_a_replay_is_no_checkpoint(tmp_path: Path) -> None:
    for name in ("rank-0/batches/step-000100.pt", "rank-0/batches/step-000100.json", "batches/step-000200.pt", "best.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert find_checkpoints(tmp_path) == [tmp_path / "batches/step-000200.pt", tmp_path / "best.pt"]
