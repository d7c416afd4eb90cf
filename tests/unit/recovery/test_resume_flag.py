"""The script's own flag for resuming, found without running the script."""

from __future__ import annotations

import shlex
from pathlib import Path

from every_case import every_case

from holdfast.recovery.choosing.resume_flag import resume_command, resume_template

PARSER = "import argparse\nparser = argparse.ArgumentParser()\n"
TRAINER = "from transformers import HfArgumentParser\nargs = HfArgumentParser(A).parse()\ntrain(args.resume_from_checkpoint)\n"
NANO = 'init_from = "scratch"\nif init_from == "resume":\n    load(os.path.join(out_dir, "ckpt.pt"))\n'


def resumed(folder: Path, source: str, command: str, checkpoint: str = "out/ckpt.pt") -> str | None:
    (folder / "train.py").write_text(source)
    words = resume_command(shlex.split(command), Path(checkpoint), folder)
    return None if words is None else shlex.join(words)


@every_case(
    ("source", "flag"),
    [
        (PARSER + 'parser.add_argument("--resume", default=None)', "--resume out/ckpt.pt"),
        (PARSER + 'parser.add_argument("-r", "--resume-from", type=str)', "--resume-from out/ckpt.pt"),
        (PARSER + 'parser.add_argument("--checkpoint", type=Path)', "--checkpoint out/ckpt.pt"),
        (PARSER + 'parser.add_argument("--init_from")\nparser.add_argument("--ckpt_path")', "--ckpt_path out/ckpt.pt"),
        (PARSER + 'parser.add_argument("--resume", action="store_true")\nparser.add_argument("--ckpt")', "--ckpt out/ckpt.pt"),
        ('import click\n@click.option("--resume", type=str)\ndef main(): ...', "--resume out/ckpt.pt"),
        ("from lightning.pytorch.cli import LightningCLI\nLightningCLI(A, B)", "--ckpt_path out/ckpt.pt"),
        (TRAINER, "--resume_from_checkpoint out/ckpt.pt"),
        (NANO, "--init_from=resume"),
    ],
)
def test_the_flag_that_the_script_declares_is_used(tmp_path: Path, source: str, flag: str) -> None:
    assert resumed(tmp_path, source, "python train.py --lr 0.1") == f"python train.py --lr 0.1 {flag}"


@every_case(
    "source",
    [
        PARSER + 'parser.add_argument("--lr")',
        PARSER + 'parser.add_argument("--resume", action="store_true")',
        PARSER + 'parser.add_argument("--checkpoint", type=int)',
        NANO.replace("ckpt.pt", "model.pt"),
        "this is no Python (",
        "raise SystemExit",
    ],
)
def test_a_script_without_such_a_flag_gets_none(tmp_path: Path, source: str) -> None:
    assert resumed(tmp_path, source, "python train.py --lr 0.1") is None


@every_case("old", ["--resume old.pt", "--resume=old.pt", "--resume"])
def test_what_it_was_resumed_from_before_is_replaced(tmp_path: Path, old: str) -> None:
    source = PARSER + 'parser.add_argument("--resume", nargs="?")'
    assert resumed(tmp_path, source, f"python train.py {old} --lr 0.1") == "python train.py --lr 0.1 --resume out/ckpt.pt"


def test_a_flag_on_the_command_line_is_known_even_if_the_source_is_not(tmp_path: Path) -> None:
    command = ["my-trainer", "--resume-from", "old.pt", "--epochs", "3"]
    assert resume_command(command, Path("new.pt"), tmp_path) == ["my-trainer", "--epochs", "3", "--resume-from", "new.pt"]


def test_a_parser_in_a_module_beside_the_script_is_found(tmp_path: Path) -> None:
    (tmp_path / "options.py").write_text(PARSER + 'parser.add_argument("--resume")')
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/__init__.py").write_text("")
    assert resumed(tmp_path, "from options import parser", "torchrun --nproc-per-node 2 train.py") == (
        "torchrun --nproc-per-node 2 train.py --resume out/ckpt.pt"
    )
    assert resumed(tmp_path, "from options import parser", "python -m train") == "python -m train --resume out/ckpt.pt"


@every_case(
    ("source", "template"),
    [
        (PARSER + 'parser.add_argument("--resume", default=None)', "--resume {checkpoint}"),
        (NANO, "--init_from=resume"),
        (NANO.replace("ckpt.pt", "data.bin"), None),
        (PARSER + 'parser.add_argument("--lr")', None),
    ],
)
def test_the_flag_is_known_before_anything_was_saved(tmp_path: Path, source: str, template: str | None) -> None:
    (tmp_path / "train.py").write_text(source)
    assert resume_template(["python", "train.py"], tmp_path) == template
