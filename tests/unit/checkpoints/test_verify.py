"""A checkpoint is judged by every byte of it: what is bad is found, named and counted, and what may be as it is, is let be."""

from __future__ import annotations

import os
import pickle
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_case import every_case
from safetensors.torch import save_file
from torch import nn

from holdfast.checkpoints import scanning
from holdfast.checkpoints.contents import Contents, FileInfo, Storage, TensorInfo
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.checkpoints.verify import BadTensor, Verdict, verify
from holdfast.inside.gradients.non_finite import bad_tensors

NAN, INF = float("nan"), float("inf")


def judged(path: Path, **options: Any) -> Verdict:
    return verify(open_checkpoint(path), **options)


def saved(folder: Path, content: Any, name: str = "checkpoint.pt", *, zip_file: bool = True) -> Path:
    path = folder / name
    torch.save(content, path, _use_new_zipfile_serialization=zip_file)
    return path


def training() -> dict[str, Any]:
    """What a script saves: a model with running statistics, its optimizer after a step, counters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2, "loss": 0.4}


# --- clean


@every_case("zip_file", [True, False])
def test_a_good_checkpoint_is_clean(tmp_path: Path, zip_file: bool) -> None:
    verdict = judged(saved(tmp_path, training(), zip_file=zip_file))
    assert (verdict.state, verdict.troubles, verdict.bad) == ("clean", [], [])
    assert verdict.checked == zip_file  # the older format has no checksums
    assert verdict.tensors == 27 and verdict.bytes_read > 1000


def test_a_checkpoint_without_a_tensor_is_clean(tmp_path: Path) -> None:
    assert judged(saved(tmp_path, {"epoch": 3})).state == "clean"


def test_huge_weights_whose_sum_overflows_are_clean(tmp_path: Path) -> None:
    content = {"a.weight": torch.full((3000,), 3e38), "b.weight": torch.full((3000,), -3e38)}
    assert judged(saved(tmp_path, content)).state == "clean"


def test_whole_numbers_are_not_taken_for_nan(tmp_path: Path) -> None:
    content = {"a": torch.full((100,), -1, dtype=torch.int32), "b": torch.full((100,), 0x7FC00000, dtype=torch.int32)}
    assert judged(saved(tmp_path, content)).state == "clean"


# --- not finite


@every_case("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.complex64])
@every_case("zip_file", [True, False])
def test_the_tensor_and_how_many_of_its_numbers_are_bad_is_told(tmp_path: Path, dtype: torch.dtype, zip_file: bool) -> None:
    bad = torch.ones(1001).to(dtype)
    for at, value in ((0, NAN), (1, INF), (500, -INF), (1000, NAN)):
        bad[at] = value
    content = {"good.weight": torch.ones(7, dtype=dtype), "bad.weight": bad, "also.bias": torch.ones(5)}
    verdict = judged(saved(tmp_path, content, zip_file=zip_file))
    assert verdict.state == "non-finite"
    assert verdict.bad == [BadTensor("bad.weight", nan=2, inf=2, count=1001)]
    (trouble,) = verdict.troubles
    assert "1 of 3 tensors holds non-finite values: 2 NaN and 2 Inf" in trouble.text


def test_safetensors_are_looked_at_as_well(tmp_path: Path) -> None:
    weight = torch.ones(3, 5, dtype=torch.bfloat16)
    weight[2, 4] = -INF
    save_file(
        {"x.weight": weight, "odd": torch.ones(3, dtype=torch.uint8), "y.weight": torch.ones(9)}, tmp_path / "m.safetensors"
    )
    verdict = judged(tmp_path / "m.safetensors")
    assert (verdict.state, verdict.bad, verdict.checked) == ("non-finite", [BadTensor("x.weight", 0, 1, 15)], False)


@every_case("part", ["model", "optimizer"])
def test_every_part_that_a_training_needs_must_be_finite(tmp_path: Path, part: str) -> None:
    content = training()
    name = {"model": "model.1.running_var", "optimizer": "optimizer.state.0.exp_avg_sq"}[part]
    tensor = content["model"]["1.running_var"] if part == "model" else content["optimizer"]["state"][0]["exp_avg_sq"]
    tensor.view(-1)[0] = NAN
    verdict = judged(saved(tmp_path, content))
    assert [one.name for one in verdict.bad] == [name]
    says = verdict.troubles[0].fix
    assert ("the weights are finite: load these alone" in says) == (part == "optimizer")


def test_a_model_that_is_nan_everywhere_is_said_to_have_failed_before_it_was_saved(tmp_path: Path) -> None:
    content = training()
    for tensor in content["model"].values():
        if tensor.is_floating_point():
            tensor.fill_(NAN)
    verdict = judged(saved(tmp_path, content))
    assert len(verdict.bad) == 8 and all(one.nan == one.count for one in verdict.bad)
    assert "already failed when it was saved" in verdict.troubles[0].fix


def test_finite_averages_beside_bad_weights_are_pointed_out(tmp_path: Path) -> None:
    content = training()
    content["ema"] = {name: tensor.clone() for name, tensor in content["model"].items()}
    content["model"]["0.weight"][0, 0] = INF
    assert "its averaged weights are finite" in judged(saved(tmp_path, content)).troubles[0].fix


def test_bad_numbers_are_counted_for_each_tensor_of_a_shared_storage(tmp_path: Path) -> None:
    whole = torch.zeros(10, 10)
    whole[3, 7] = NAN
    whole[9, 9] = INF
    content = {
        "whole": whole,
        "transposed": whole.t(),
        "third_row": whole[3],
        "seventh_column": whole[:, 7],
        "corner": whole[2:5, 6:9],
        "elsewhere": whole[:3],
        "steps": whole[1::2, 1::2],
        "many_times": whole[9, 9].expand(6),
    }
    verdict = judged(saved(tmp_path, content))
    told = {one.name: (one.nan, one.inf) for one in verdict.bad}
    assert told == {
        "whole": (1, 1),
        "transposed": (1, 1),
        "third_row": (1, 0),
        "seventh_column": (1, 0),
        "corner": (1, 0),
        "steps": (1, 1),
        "many_times": (0, 6),
    }
    seen = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert {name: (int(one.isnan().sum()), int(one.isinf().sum())) for name, one in seen.items() if name in told} == told


def test_bytes_of_a_storage_that_no_tensor_uses_do_not_count(tmp_path: Path) -> None:
    whole = torch.zeros(100)
    whole[:50] = NAN
    assert judged(saved(tmp_path, {"second_half": whole[50:]})).state == "clean"


@every_case("at", [0, 1, 9_999, 65_535, 65_536, 131_071, 299_999])
def test_counts_are_right_wherever_pieces_are_cut(tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "CHUNK", 1 << 16)
    monkeypatch.setattr(scanning, "PIECE", 1 << 18)
    content = {"w": torch.zeros(300_000), "v": torch.zeros(11)}
    content["w"][at] = NAN
    assert judged(saved(tmp_path, content)).bad == [BadTensor("w", 1, 0, 300_000)]


# --- may be as it is


@every_case("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_causal_mask_is_a_note_and_no_trouble(tmp_path: Path, dtype: torch.dtype) -> None:
    mask = torch.full((16, 16), -INF).triu(1).to(dtype)
    content = training()
    content["model"]["attention.mask"] = mask
    content["model"]["attention.shown"] = mask.masked_fill(mask == 0, 1.0)
    verdict = judged(saved(tmp_path, content))
    assert verdict.state == "clean"
    (note,) = verdict.notes
    assert "model.attention.mask, model.attention.shown hold 240 Inf, and may: a mask" in note


def test_the_bound_of_a_constraint_without_a_limit_is_a_note(tmp_path: Path) -> None:
    noise = {"noise.raw_noise": torch.ones(1), "noise.constraint.upper_bound": torch.tensor(INF)}
    assert judged(saved(tmp_path, noise)).state == "clean"
    assert judged(saved(tmp_path, {**noise, "noise.constraint.upper_bound": torch.tensor(torch.nan)})).state == "non-finite"
    assert bad_tensors(noise) == []


@every_case("value", [NAN, INF, 0.5])
def test_what_only_looks_a_little_like_a_mask_is_bad(tmp_path: Path, value: float) -> None:
    mask = torch.full((16, 16), -INF).triu(1)
    mask[5, 1] = value
    assert judged(saved(tmp_path, {"a.mask": mask, "b.weight": torch.ones(3)})).state == "non-finite"


@every_case("name", ["norm.bias", "norm.weight", "adapter.weight", "gain"])
def test_a_new_bias_or_norm_with_one_infinity_is_not_taken_for_a_mask(tmp_path: Path, name: str) -> None:
    tensor = torch.zeros(64, 4) if "adapter" in name else torch.full((64,), float("weight" in name))
    tensor.view(-1)[3] = -INF
    assert judged(saved(tmp_path, {name: tensor, "b.weight": torch.ones(3)})).state == "non-finite"


def test_a_moment_of_the_optimizer_is_never_taken_for_a_mask(tmp_path: Path) -> None:
    content = training()
    content["optimizer"]["state"][0]["exp_avg"].zero_().view(-1)[0] = -INF
    assert judged(saved(tmp_path, content)).state == "non-finite"


def test_what_a_trainer_keeps_beside_the_weights_is_a_note(tmp_path: Path) -> None:
    content = {
        "state_dict": training()["model"],
        "callbacks": {"EarlyStopping": {"best_score": torch.tensor(INF), "wait_count": 0}},
        "best_loss": torch.tensor(INF),
    }
    verdict = judged(saved(tmp_path, content))
    assert verdict.state == "clean"
    assert "best_score" in verdict.notes[0] and "stored beside the weights" in verdict.notes[0]


def test_a_second_model_must_be_finite_whatever_it_is_called(tmp_path: Path) -> None:
    content = {"model": training()["model"], "best_model": {"0.weight": torch.tensor([1.0, NAN])}}
    assert [one.name for one in judged(saved(tmp_path, content)).bad] == ["best_model.0.weight"]
    measured = {"model": training()["model"], "metrics": {"per_class": torch.tensor([1.0, NAN]), "acc": torch.tensor(0.5)}}
    assert judged(saved(tmp_path, measured)).state == "clean"


def test_an_observer_that_has_seen_nothing_is_a_note(tmp_path: Path) -> None:
    observer = torch.ao.quantization.MinMaxObserver()
    content = {"conv.weight": torch.ones(3), **{f"conv.observer.{name}": one for name, one in observer.state_dict().items()}}
    verdict = judged(saved(tmp_path, content))
    assert verdict.state == "clean" and "observer" in verdict.notes[0]


# --- damaged


def test_a_flipped_bit_anywhere_in_the_numbers_is_found(tmp_path: Path) -> None:
    path = saved(tmp_path, training())
    contents, data = open_checkpoint(path), path.read_bytes()
    noise = np.random.default_rng(0)
    for number in noise.choice(len(contents.storages), 10, replace=False):
        storage = contents.storages[number]
        damaged = bytearray(data)
        damaged[storage.offset + int(noise.integers(storage.size))] ^= 1 << int(noise.integers(8))
        path.write_bytes(damaged)
        verdict = judged(path)
        assert verdict.state == "torn"
        hit = next(tensor.name for tensor in contents.tensors if tensor.storage == number)
        assert any(f"The bytes of {hit} do not match their checksum" in one.text for one in verdict.troubles)


def test_damage_in_many_tensors_is_one_sentence(tmp_path: Path) -> None:
    path = saved(tmp_path, {f"{number}.weight": torch.ones(100) for number in range(30)})
    data = bytearray(path.read_bytes())
    for storage in open_checkpoint(path).storages:
        data[storage.offset] ^= 1
    path.write_bytes(data)
    (trouble,) = judged(path).troubles
    assert "0.weight, 1.weight, 2.weight and 27 more do not match their checksums" in trouble.text


def test_a_file_cut_at_any_byte_is_never_called_clean(tmp_path: Path) -> None:
    data = saved(tmp_path, training()).read_bytes()
    path = tmp_path / "cut.pt"
    for length in [*range(0, len(data), 211), len(data) - 1]:
        path.write_bytes(data[:length])
        assert judged(path).state in ("torn", "unreadable"), length


def test_a_cut_file_is_not_also_called_damaged(tmp_path: Path) -> None:
    data = saved(tmp_path, training()).read_bytes()
    path = tmp_path / "cut.pt"
    path.write_bytes(data[: len(data) // 2])
    assert not [one for one in judged(path).troubles if "checksum" in one.text]


def test_a_file_cut_short_while_it_is_read_is_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "CHUNK", 1 << 16)
    monkeypatch.setattr(scanning, "PIECE", 1 << 16)
    path = saved(tmp_path, {"w": torch.zeros(1_000_000)})

    def cut(memory: memoryview, before: int) -> int:  # called where the first bytes have been read
        if path.stat().st_size > 1_000_000:
            os.truncate(path, 1_000_000)
        return zlib.crc32(memory, before)

    verdict = judged(path, crc32=cut)
    assert verdict.state == "torn"
    assert [one.text for one in verdict.troubles] == ["It became shorter while it was read."]
    assert "verify it again" in verdict.troubles[0].fix


@every_case("happens", ["removed", "written over", "grows"])
def test_a_file_that_something_writes_to_meanwhile_is_torn(tmp_path: Path, happens: str) -> None:
    path = saved(tmp_path, training())
    contents = open_checkpoint(path)
    if happens == "removed":
        path.unlink()
    elif happens == "grows":
        with path.open("ab") as file:
            file.write(b"more")
    else:
        data = path.read_bytes()
        path.write_bytes(data)
        os.utime(path, (1, 1))
    verdict = verify(contents)
    assert verdict.state == "torn"
    assert all("while it was read" in one.text for one in verdict.troubles) and len(verdict.troubles) == 1


def test_training_that_saves_over_the_file_again_and_again_never_makes_verify_raise(tmp_path: Path) -> None:
    path, stop = saved(tmp_path, {"w": torch.zeros(200_000)}), threading.Event()

    def save() -> None:
        while not stop.is_set():
            torch.save({"w": torch.zeros(200_000)}, path)

    thread = threading.Thread(target=save)
    thread.start()
    try:
        states = {judged(path).state for _ in range(40)}
    finally:
        stop.set()
        thread.join()
    assert states <= {"clean", "torn", "unreadable"}


def test_an_unsafe_file_stays_unsafe_whatever_else_is_wrong(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    content = {"w.weight": torch.full((3,), NAN), "x": Payload()}
    verdict = judged(saved(tmp_path, content))
    assert verdict.state == "unsafe" and verdict.bad and not (tmp_path / "ran").exists()


# --- the answer


def test_the_row_for_json_has_everything(tmp_path: Path) -> None:
    content = training()
    content["model"]["0.bias"][1] = NAN
    row = judged(saved(tmp_path, content)).as_row()
    assert list(row) == ["path", "state", "troubles", "bad", "notes", "tensors", "bytes_read", "checked", "seconds"]
    assert row["bad"] == [{"name": "model.0.bias", "nan": 1, "inf": 0, "count": 16}]
    assert row["troubles"][0].keys() == {"state", "words", "fix", "where"}


def test_an_index_that_makes_no_sense_is_no_reason_to_raise(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(np.array([NAN] * 4, np.float32).tobytes())
    contents = Contents(path=path, format="made up", files=[FileInfo(path, 16, path.stat().st_mtime)])
    contents.storages = [Storage(path, 0, 16, "float32"), Storage(path, 8, 100, "float32")]
    contents.tensors = [
        TensorInfo("beyond", "float32", (1000,), 0),
        TensorInfo("nowhere", "float32", (3,), 7),
        TensorInfo("behind", "float32", (2,), 0, offset=50),
        TensorInfo("unknown", "float3", (2,), 0),
        TensorInfo("none", "float32", (0, 5), 0),
        TensorInfo("odd", "float32", (2, 2), 0, stride=(0, 3)),
    ]
    verdict = verify(contents)
    assert verdict.state == "torn"  # the second storage ends beyond the file
    assert {one.name for one in verdict.bad} == {"beyond", "odd"}


def test_ten_thousand_small_tensors_are_judged_in_one_pass(tmp_path: Path) -> None:
    tensors = {f"layers.{number}.weight": torch.ones(8) for number in range(10_000)}
    tensors["layers.5000.weight"][3] = NAN
    save_file(tensors, tmp_path / "many.safetensors")
    verdict = judged(tmp_path / "many.safetensors")
    assert verdict.bad == [BadTensor("layers.5000.weight", 1, 0, 8)] and verdict.tensors == 10_000


@every_case("protocol", [2, 4, 5])
@every_case("order", ["<f4", ">f8", "<f2", "<c8"])
def test_arrays_of_numpy_are_looked_at_too(protocol: int, order: str, tmp_path: Path) -> None:
    path, good, bad = tmp_path / "a.pkl", np.ones((300, 500), order), np.ones((300, 500), order)
    bad[7, 3], bad[299, 499] = np.nan, np.inf
    path.write_bytes(pickle.dumps({"model": {"a": good, "b": np.asfortranarray(bad)}, "metrics": {"loss": bad[:8]}}, protocol))
    verdict = verify(open_checkpoint(path))
    assert [(one.name, one.nan, one.inf, one.count) for one in verdict.bad] == [("model.b", 1, 1, 150_000)]
    assert verdict.state == "non-finite" and "metrics.loss" in verdict.notes[0] and "1 of 3" in verdict.troubles[0].text
    path.write_bytes(pickle.dumps({"model": {"a": good}}, protocol))
    assert verify(open_checkpoint(path), must_hold_tensors=True).state == "clean"


def test_a_file_without_tensors_is_not_a_clean_checkpoint(tmp_path: Path) -> None:
    path = saved(tmp_path, {"epoch": 3, "name": "a"})
    assert verify(open_checkpoint(path)).state == "clean"
    verdict = verify(open_checkpoint(path), must_hold_tensors=True)
    assert verdict.state == "unreadable" and "no tensor" in verdict.troubles[0].text and "weights" in verdict.troubles[0].fix


@every_case("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_weight_with_nan_is_not_taken_for_something_beside_the_weights(layout: torch.layout, tmp_path: Path) -> None:
    sparse = torch.eye(3).to_sparse(layout=layout)
    sparse.values()[1] = NAN
    alone, beside = {"emb.weight": sparse}, {"emb.weight": sparse, "head.weight": torch.ones(3)}
    for content in (alone, beside, {"model": alone, "step": 3}, {"model": beside, "step": 3}):
        verdict = judged(saved(tmp_path, content))
        assert verdict.state == "non-finite" and sum(tensor.nan for tensor in verdict.bad) == 1


def test_what_cannot_be_listed_in_full_is_a_note_and_no_damage(tmp_path: Path) -> None:
    settings: list[object] = []
    for _ in range(40):  # a trainer among the settings leads back to itself in as many ways
        settings = [settings, settings]
    path = tmp_path / "last.ckpt"
    torch.save({"state_dict": nn.Linear(2, 2).state_dict(), "hyper_parameters": settings}, path)
    verdict = verify(open_checkpoint(path))
    assert verdict.state == "clean" and any("not all tensors" in note for note in verdict.notes)
