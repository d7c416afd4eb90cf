"""`holdfast run` is not noticed by the command it runs, and says clearly what it cannot run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_run import HOLDFAST, PYTHON, environment, info_of, only_run, run, start, wait_until


def test_stdout_is_the_commands_alone_and_stderr_gets_one_line_more(tmp_path: Path) -> None:
    done = run(tmp_path, "--", PYTHON, "-c", "import sys; print('out'); print('err', file=sys.stderr)")
    assert done.stdout == "out\n"
    ours, theirs = done.stderr.splitlines()
    folder = only_run(tmp_path)
    assert ours == f"holdfast: run {folder.name} in runs/{folder.name}"
    assert theirs == "err"


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


def test_a_line_is_passed_on_the_moment_it_is_printed(tmp_path: Path) -> None:
    script = "import sys; print('first', flush=True); sys.stdin.read()"
    with start(tmp_path, PYTHON, "-c", script, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "first\n"
        process.stdin.close()
    assert process.returncode == 0


def test_stdin_is_the_commands(tmp_path: Path) -> None:
    done = run(tmp_path, "cat", input="1\n2\n")
    assert done.stdout == "1\n2\n"


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -11 $$", 139)])
def test_the_exit_code_is_the_commands(script: str, code: int, tmp_path: Path) -> None:
    assert run(tmp_path, "--", "sh", "-c", script).returncode == code
    assert info_of(only_run(tmp_path))["exit_code"] == code


def test_run_json_says_what_was_started_and_how_it_ended(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hi')")
    run(tmp_path, "--budget", "2%", PYTHON, "train.py", "--lr", "0.1")
    info = info_of(only_run(tmp_path))
    assert info["command"] == [PYTHON, "train.py", "--lr", "0.1"]
    assert info["cwd"] == str(tmp_path)
    assert info["python"] == PYTHON
    assert info["budget"] == 0.02
    assert info["policy"] == "observe"
    assert info["started"] <= info["ended"]
    assert re.fullmatch(r"train-\d{4}-\d{6}", info["name"])


def test_the_commands_own_options_are_left_to_it(tmp_path: Path) -> None:
    done = run(tmp_path, "--name", "a", PYTHON, "-c", "import sys; print(sys.argv[1:])", "--name", "b", "--", "--policy=x")
    assert done.stdout == "['--name', 'b', '--', '--policy=x']\n"
    assert only_run(tmp_path).name == "a"


def test_a_script_that_is_no_program_runs_with_this_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.executable, sys.argv)")
    assert run(tmp_path, "train.py", "--x").stdout == f"{sys.executable} ['train.py', '--x']\n"


def test_a_script_without_a_first_line_runs_as_in_a_shell(tmp_path: Path) -> None:
    script = tmp_path / "go"
    script.write_text("echo $1")
    script.chmod(0o755)
    assert run(tmp_path, "./go", "there").stdout == "there\n"


def test_a_second_run_of_the_same_name_keeps_the_first_and_says_so(tmp_path: Path) -> None:
    run(tmp_path, "--name", "a", "echo", "1")
    done = run(tmp_path, "--name", "a", "echo", "2")
    assert done.stderr == "holdfast: run a-2 in runs/a-2 (the name a was taken)\n"
    assert (tmp_path / "runs/a/train.log").read_text() == "1\n"
    assert (tmp_path / "runs/latest").resolve().name == "a-2"


def test_descriptors_that_the_shell_opened_for_the_command_reach_it(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("through 5")
    words = " ".join([*HOLDFAST, "run", "sh", "-c", "'cat <&5'"])
    done = subprocess.run(
        ["sh", "-c", f"{words} 5<in"], cwd=tmp_path, env=environment(tmp_path), capture_output=True, check=False
    )
    assert done.stdout == b"through 5"


def test_a_closed_stdout_does_no_harm(tmp_path: Path) -> None:
    words = " ".join([*HOLDFAST, "run", "--name", "a", "sh", "-c", "'echo lost; exit 4'"])
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
    (("--name", "a/b", "true"), "'a/b' cannot be the name", "without a slash"),
]


@pytest.mark.parametrize(("words", "problem", "fix"), BAD_INPUT)
def test_what_cannot_be_run_gets_an_answer_and_leaves_no_folder(
    words: tuple[str, ...], problem: str, fix: str, tmp_path: Path
) -> None:
    (tmp_path / "train.sh").write_text("echo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad-first-line").write_text("#!/no/such/interpreter\n")
    (tmp_path / "bad-first-line").chmod(0o755)
    done = run(tmp_path, *words)
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
    assert done.stderr.split("\n", 1)[1] == alone.stderr


def test_the_run_is_listed_while_it_lives_and_not_after(tmp_path: Path) -> None:
    listed = tmp_path / "holdfast"
    with start(tmp_path, "--name", "a", PYTHON, "-c", "input()", stdin=subprocess.PIPE) as process:
        assert process.stderr is not None and process.stdin is not None
        process.stderr.readline()
        entry = listed / f"{process.pid}.json"
        wait_until(entry.exists)
        assert json.loads(entry.read_text())["folder"] == str(tmp_path / "runs/a")
        process.stdin.write("\n")
        process.stdin.close()
    assert not list(listed.glob("[0-9]*.json"))
