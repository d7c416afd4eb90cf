"""`holdfast checkpoints verify`: one word for each checkpoint, what is wrong, and what to do."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import one_of_each, save, training
from safetensors.torch import save_file

Holdfast = Callable[..., Any]


def test_a_clean_checkpoint_is_one_line_and_exit_0(holdfast: Holdfast, here: Path) -> None:
    save(here / "good.pt", training())
    done = holdfast("checkpoints", "verify", "good.pt")
    assert done.code == 0
    assert re.fullmatch(r"clean +good\.pt +[\d.]+ KiB, \d+ tensors, checksums match\n", done.out)
    assert done.err.startswith("1 checkpoint: 1 clean; ")


def test_each_state_is_told_apart_in_words_with_what_to_do(holdfast: Holdfast, here: Path) -> None:
    one_of_each(here / "kept")
    done = holdfast("checkpoints", "verify", "kept")
    assert done.code == 1
    said = " ".join(done.out.split())
    for state, name in (("clean", "ckpt_100"), ("non-finite", "ckpt_200"), ("torn", "last"), ("unreadable", "page")):
        assert f"{state} kept/{name}.pt" in said
    assert "unsafe kept/evil.pt" in said and "system" in said and not (here / "kept" / "ran").exists()
    assert "2 of 104 tensors hold non-finite values: 5 NaN and 1 Inf." in said
    assert re.search(r"model\.blocks\.3\.up\.weight +5 NaN of 128", done.out)
    assert re.search(r"model\.head\.bias +1 Inf of 3", done.out)
    assert done.out.count("fix: ") >= 4
    assert "holdfast checkpoints choose kept" in said
    assert "5 checkpoints: 1 clean, 1 non-finite, 1 torn, 1 unreadable, 1 unsafe" in done.err


def test_no_line_is_wider_than_100_columns(holdfast: Holdfast, here: Path) -> None:
    one_of_each(here / "kept")
    wide = [line for line in holdfast("checkpoints", "verify", "kept").out.splitlines() if len(line) > 100]
    assert not wide


def test_json_is_one_list_with_stable_keys(holdfast: Holdfast, here: Path) -> None:
    one_of_each(here / "kept")
    done = holdfast("checkpoints", "verify", "--json", "kept")
    rows = json.loads(done.out)
    assert done.code == 1 and len(rows) == 5 and not done.err
    assert list(rows[0]) == [
        "path", "format", "producer", "size", "files", "modified", "state", "troubles", "bad", "notes", "tensors", "bytes_read",
        "checked", "seconds", "refused",
    ]  # fmt: skip
    by_name = {Path(row["path"]).name: row for row in rows}
    assert by_name["ckpt_200.pt"]["bad"][0] == {"name": "model.blocks.3.up.weight", "nan": 5, "inf": 0, "count": 128}
    assert by_name["evil.pt"]["refused"] and by_name["ckpt_100.pt"]["checked"] is True


def test_ten_bad_tensors_are_listed_and_the_rest_counted(holdfast: Holdfast, here: Path) -> None:
    save(here / "nan.pt", {f"layers.{number}.weight": torch.full((4,), float("nan")) for number in range(25)})
    short, full = holdfast("checkpoints", "verify", "nan.pt"), holdfast("checkpoints", "verify", "nan.pt", "--all")
    assert short.out.count("4 NaN of 4") == 10 and "and 15 more: --all lists them" in short.out
    assert full.out.count("4 NaN of 4") == 25
    assert "already failed when it was saved" in " ".join(short.out.split())


def test_a_format_without_checksums_says_so(holdfast: Holdfast, here: Path) -> None:
    save_file({"w.weight": torch.ones(3)}, here / "m.safetensors")
    assert "all finite; it has no checksums" in holdfast("checkpoints", "verify", "m.safetensors").out


def test_a_file_that_is_not_there_names_what_is_near_and_exits_2(holdfast: Holdfast, here: Path) -> None:
    save(here / "checkpoints" / "ckpt_100.pt", training())
    done = holdfast("checkpoints", "verify", "checkpoints/ckpt_10.pt")
    assert done.code == 2 and not done.out
    assert "There is no checkpoint at checkpoints/ckpt_10.pt" in done.err and "checkpoints/ckpt_100.pt" in done.err


def test_of_several_paths_a_wrong_one_does_not_stop_the_others(holdfast: Holdfast, here: Path) -> None:
    save(here / "good.pt", training())
    done = holdfast("checkpoints", "verify", "gone.pt", "good.pt")
    assert done.code == 0 and "clean" in done.out and "There is no checkpoint at gone.pt" in done.err


@pytest.mark.parametrize("given", [["empty"], []])
def test_nothing_to_verify_exits_2_and_says_what_to_type(holdfast: Holdfast, here: Path, given: list[str]) -> None:
    (here / "empty").mkdir()
    done = holdfast("checkpoints", "verify", *given)
    assert done.code == 2 and "fix:" in done.err and "Traceback" not in done.err


def test_a_pattern_that_no_shell_expanded_is_understood(holdfast: Holdfast, here: Path) -> None:
    for step in (100, 200, 300):
        save(here / "a" / f"ckpt_{step}.pt", training(step))
    done = holdfast("checkpoints", "verify", "*/ckpt_[12]*.pt")
    assert done.out.count("clean") == 2 and "ckpt_300" not in done.out
    assert holdfast("checkpoints", "verify", "*/nothing_*.pt").code == 2


def test_without_a_path_the_usual_folders_are_looked_at(holdfast: Holdfast, here: Path) -> None:
    for name in ("checkpoints/a.pt", "lightning_logs/version_0/checkpoints/b.ckpt", "beside.pth", "elsewhere/c.pt"):
        save(here / name, training())
    out = holdfast("checkpoints", "verify").out
    assert [name in out for name in ("a.pt", "b.ckpt", "beside.pth", "c.pt")] == [True, True, True, False]


def test_the_newest_run_is_among_them(holdfast: Holdfast, here: Path, training: Callable[..., object]) -> None:
    from checkpoint_files import training as content

    training("digits", live=False)
    save(here / "runs" / "digits" / "checkpoints" / "x.pt", content())
    assert holdfast("checkpoints", "verify").out.count("runs/digits/checkpoints/x.pt") == 1


def test_names_from_a_file_cannot_disturb_the_terminal(holdfast: Holdfast, here: Path) -> None:
    weird = "[bold red]x\x1b[2J\x07\n.weight"
    save(here / "a[b]\x1b.pt", {weird: torch.full((2,), float("nan")), "ok.weight": torch.ones(2)})
    for verb in ("verify", "list", "inspect"):
        out = holdfast("checkpoints", verb, ".").out
        assert "\x1b" not in out and "\x07" not in out and "a[b]" in out
        assert "[bold red]" in out or verb == "list"


def test_a_broken_link_and_a_device_are_told(holdfast: Holdfast, here: Path) -> None:
    (here / "link.pt").symlink_to("nowhere.pt")
    os.mkfifo(here / "pipe.pt")
    done = holdfast("checkpoints", "verify", "link.pt", "pipe.pt")
    assert done.code == 1 and done.out.count("unreadable") == 2


def test_torch_is_not_imported(holdfast: Holdfast, here: Path, command: list[str]) -> None:
    import subprocess
    import sys

    save(here / "good.pt", training())
    code = (
        "import sys; from holdfast.cli.app import app\n"
        "for verb in ('verify', 'list', 'inspect'):\n"
        "    app(['checkpoints', verb, 'good.pt'], standalone_mode=False); print('>', verb, 'torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    told = [line for line in answer.stdout.splitlines() if line.startswith("> ")]
    assert told == ["> verify False", "> list False", "> inspect False"], answer.stderr


def test_a_bar_shows_how_far_it_is_where_somebody_looks_and_stays_out_of_the_answer(
    holdfast: Holdfast, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from holdfast.cli.checkpoints import progress

    for step in (100, 200):
        save(here / "kept" / f"ckpt_{step}.pt", training(step))
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    quiet = holdfast("checkpoints", "verify", "kept")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    seen = holdfast("checkpoints", "verify", "kept")
    assert seen.out == quiet.out and "verifying" not in quiet.err and "verifying" in seen.err
    assert holdfast("checkpoints", "list", "--json", "kept").code == 0


def test_ctrl_c_ends_it_with_130_and_no_traceback(here: Path, command: list[str]) -> None:
    import signal
    import subprocess
    import time

    with (here / "big.safetensors").open("wb") as file:  # a hole of 40 GB: it takes no room, and a while to read
        header = b'{"w":{"dtype":"F32","shape":[10000000000],"data_offsets":[0,40000000000]}}'
        header += b" " * (-len(header) % 8)
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 40_000_000_000)
    process = subprocess.Popen([*command, "checkpoints", "verify", "big.safetensors"], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 600
    while int(Path(f"/proc/{process.pid}/io").read_text(encoding="utf-8").split()[1]) < 200_000_000:  # bytes it has read
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130 and "Traceback" not in err
