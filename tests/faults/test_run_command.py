"""`holdfast run` is not noticed by the command it runs, and says clearly what it cannot run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_run import HOLDFAST, PYTHON, environment, info_of, only_run, run, start, typed, wait_until


def test_arguments_stdin_and_stdout_are_the_commands_alone_and_stderr_gets_one_line_more(tmp_path: Path) -> None:
    script = "import sys; print(sys.argv[1:], input(), input()); print('err', file=sys.stderr)"
    done = run(tmp_path, "--name", "a", "--", PYTHON, "-c", script, "--name", "b", "--", "--policy=x", input="1\n2\n")
    assert done.stdout == "['--name', 'b', '--', '--policy=x'] 1 2\n"
    assert done.stderr == "holdfast: run a in runs/a\nerr\n"
    assert only_run(tmp_path).name == "a"


def test_output_is_passed_on_byte_for_byte_and_kept_in_train_log(tmp_path: Path) -> None:
    every = bytes(range(256)) * 4096
    script = f"import sys; sys.stdout.buffer.write(bytes(range(256)) * 4096); sys.exit({len(every)} % 7)"
    done = subprocess.run(
        [*HOLDFAST, "run", PYTHON, "-c", script], cwd=tmp_path, env=environment(tmp_path), capture_output=True, check=False
    )
    assert done.stdout == every
    assert done.returncode == len(every) % 7
    assert (only_run(tmp_path) / "train.log").read_bytes() == every


def test_stdout_and_stderr_in_one_file_keep_their_order(tmp_path: Path) -> None:
    script = "import os\nfor i in range(500): os.write(1, b'o%d\\n' % i); os.write(2, b'e%d\\n' % i)"
    done = run(tmp_path, PYTHON, "-c", script, capture_output=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wanted = [f"{stream}{i}" for i in range(500) for stream in "oe"]
    assert done.stdout.splitlines()[1:] == wanted
    assert (only_run(tmp_path) / "train.log").read_text().splitlines() == wanted


def test_the_exit_code_of_a_command_that_is_killed_is_128_and_its_signal(tmp_path: Path) -> None:
    assert run(tmp_path, "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert info_of(only_run(tmp_path))["exit_code"] == 137


def test_run_json_says_what_was_started_and_how_it_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(7)")
    assert run(tmp_path, "--budget", "2%", PYTHON, "train.py", "--lr", "0.1").returncode == 7
    info = info_of(only_run(tmp_path))
    assert info["exit_code"] == 7
    assert info["command"] == [PYTHON, "train.py", "--lr", "0.1"]
    assert info["cwd"] == str(tmp_path)
    assert info["python"] == PYTHON
    assert info["budget"] == 0.02
    assert info["policy"] == "observe"
    assert info["started"] <= info["ended"]
    assert re.fullmatch(r"train-\d{4}-\d{6}", info["name"])


def test_a_script_that_is_no_program_runs_with_this_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.executable, sys.argv)")
    assert run(tmp_path, "train.py", "--x").stdout == f"{sys.executable} ['train.py', '--x']\n"


def test_a_second_run_of_the_same_name_keeps_the_first_and_says_so(tmp_path: Path) -> None:
    run(tmp_path, "--name", "a", "echo", "1")
    done = run(tmp_path, "--name", "a", "echo", "2")
    assert done.stderr == "holdfast: run a-2 in runs/a-2 (the name a was taken)\n"
    assert (tmp_path / "runs/a/train.log").read_text() == "1\n"
    assert (tmp_path / "runs/latest").resolve().name == "a-2"


def test_a_script_without_a_first_line_runs_as_in_a_shell_with_the_descriptors_that_the_shell_opened(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("through 5")
    script = tmp_path / "go"
    script.write_text("echo $1; cat <&5")
    script.chmod(0o755)
    words = shlex.join([*HOLDFAST, "run", "./go", "there"])
    done = subprocess.run(
        ["sh", "-c", f"{words} 5<in"], cwd=tmp_path, env=environment(tmp_path), capture_output=True, check=False
    )
    assert done.stdout == b"there\nthrough 5"


def test_a_closed_stdout_does_no_harm(tmp_path: Path) -> None:
    words = shlex.join([*HOLDFAST, "run", "--name", "a", "sh", "-c", "echo lost; exit 4"])
    done = subprocess.run(["sh", "-c", f"{words} >&-"], cwd=tmp_path, env=environment(tmp_path), capture_output=True, check=False)
    assert done.returncode == 4
    assert json.loads((tmp_path / "runs/a/run.json").read_text())["exit_code"] == 4


BAD_INPUT = [
    ((), "no command after `run`", "holdfast run -- python train.py"),
    (("--",), "no command after `run`", "holdfast run -- python train.py"),
    (("pythn3", "train.py"), "there is no command pythn3", "python3"),
    (("./trian.sh",), "there is no command ./trian.sh", "train.sh"),
    (("./train.sh",), "not executable", "bash ./train.sh"),
    (("./folder",), "is a folder", "python train.py"),
    (("./bad-first-line",), "interpreter", "#!"),
    (("--policy", "help", "true"), "no policy 'help'", "--policy heal"),
    (("--budget", "lots", "true"), "'lots' is not a budget", "--budget 1%"),
    (("--name", "a/b", "true"), "'a/b' cannot be the name", "use letters, digits"),
]


@pytest.mark.parametrize(("words", "problem", "fix"), BAD_INPUT)
def test_what_cannot_be_run_gets_an_answer_and_leaves_no_folder(
    words: tuple[str, ...], problem: str, fix: str, tmp_path: Path
) -> None:
    (tmp_path / "train.sh").write_text("echo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad-first-line").write_text("#!/no/such/interpreter\n")
    (tmp_path / "bad-first-line").chmod(0o755)
    done = typed("run", *words, folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    said = " ".join(done.stderr.split())
    assert problem in said and fix in said and "Traceback" not in said
    assert not (tmp_path / "runs").exists()


def test_a_script_that_crashes_at_import_shows_its_own_traceback_and_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import no_such_module_here")
    alone = subprocess.run([PYTHON, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    done = run(tmp_path, PYTHON, "train.py")
    assert done.returncode == 1
    own, _, ours = done.stderr.split("\n", 1)[1].partition("holdfast: ")
    assert own == alone.stderr and ours.startswith("failed before the first step: ModuleNotFoundError")


def test_a_line_is_passed_on_the_moment_it_is_printed_and_the_run_is_listed_while_it_lives_and_not_after(tmp_path: Path) -> None:
    listed = tmp_path / "holdfast"
    script = "print('first', flush=True); input()"
    with start(tmp_path, "--name", "a", PYTHON, "-c", script, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "first\n"
        entry = listed / f"{process.pid}.json"
        wait_until(entry.exists)
        assert json.loads(entry.read_text())["folder"] == str(tmp_path / "runs/a")
        process.stdin.write("\n")
        process.stdin.close()
    assert process.returncode == 0
    assert not list(listed.glob("[0-9]*.json"))
