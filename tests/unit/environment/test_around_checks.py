"""What `doctor` reports about packages, trackers, Slurm and special machines; servers, locks and metadata are real ones."""

from __future__ import annotations

import http.server
import importlib.machinery
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from every_case import every_case

from holdfast.environment.check import NOTE, OK, PROBLEM, SKIPPED, WARNING
from holdfast.environment.checks import compiled_parts, mlflow, packages, slurm, wandb
from holdfast.environment.checks import platform as platform_check
from holdfast.environment.file_locks import holders
from holdfast.environment.machine import Machine, Plans
from holdfast.environment.nvidia import Card, Nvidia
from holdfast.environment.packages import Package, installed
from holdfast.environment.platform import Platform, is_grace, read_platform
from holdfast.environment.reach import without_secrets
from holdfast.environment.rules import rules_for

KEY = "0123456789abcdef0123456789abcdef01234567"


def a_closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server that answers as MLflow's does, under /refuses as one that wants a password."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = not self.path.startswith("/refuses") or self.headers.get("Authorization") == "Bearer let-me-in"
            self.send_response(200 if allowed else 401)
            self.end_headers()
            self.wfile.write(b"something else" if self.path.startswith("/other") else b"OK" if allowed else b"")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


# packages


def site(folder: Path, **versions: str) -> list[str]:
    """A folder of packages, as far as their metadata goes."""
    for name, version in versions.items():
        version, _, asks = version.partition("; asks ")
        named = name.replace("_", "-")
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: {named}\nVersion: {version}\n"
        (info / "METADATA").write_text(text + "".join(f"Requires-Dist: {one}\n" for one in asks.split(" | ") if one))
    return [str(folder)]


@every_case(
    ("versions", "level", "words"),
    [
        ({"torch": "2.8.0+cu128", "torchvision": "0.23.0+cu128", "numpy": "2.1.0"}, OK, "are compatible"),
        (
            {"torch": "2.8.0", "torchvision": "0.20.1", "numpy": "2.1.0"},
            PROBLEM,
            "0.20.1 is not made for torch 2.8.0",
        ),
        ({"torch": "2.12.0", "torchvision": "0.20.1; asks torch==2.5.1", "numpy": "2"}, PROBLEM, "is not made for torch 2.12.0"),
        ({"torch": "2.12.0", "torchvision": "0.27.0; asks torch==2.12.0", "numpy": "2"}, OK, "are compatible"),
        ({"torch": "2.8.0+cu128", "torchvision": "0.23.0+cpu", "numpy": "2"}, PROBLEM, "built for cpu, torch for cu128"),
        ({"torch": "2.8.0", "torchaudio": "2.6.0", "numpy": "2"}, PROBLEM, "torchaudio 2.6.0 is not made for torch 2.8.0"),
        ({"torch": "2.2.1", "numpy": "2.0.0"}, PROBLEM, "built for numpy 1"),
        ({"torch": "2.2.1", "numpy": "1.26.4"}, OK, "are compatible"),
        ({"torch": "2.8.0"}, WARNING, "numpy is missing"),
        ({"torch": "2.8.0", "numpy": "2", "lightning": "2.5.1", "pytorch_lightning": "2.2.0"}, WARNING, "differ"),
        (
            {"torch": "2.4.0", "numpy": "2", "transformers": '5.0; asks torch>=2.6; extra == "torch"'},
            PROBLEM,
            "needs torch >=2.6",
        ),
        ({"torch": "2.6.0", "numpy": "2", "transformers": '5.0; asks torch>=2.6; extra == "torch"'}, OK, "are compatible"),
        (
            {"torch": "2.6.0", "numpy": "2", "lightning": "2.5.0; asks torchmetrics<3.0,>0.7.0"},
            WARNING,
            "needs torchmetrics, which",
        ),
        ({"torch": "2.8.0", "numpy": "2", "torchvision": "0.23.0; asks pillow>=8"}, WARNING, "needs pillow, which is missing"),
        ({"torch": "2.8.0; asks a | b | c | d | e", "numpy": "2"}, WARNING, "and 2 more (--json)"),
        ({"numpy": "2.0.0"}, SKIPPED, "torch is not installed"),
    ],
)
def test_versions_that_do_not_fit_are_told_by_metadata_alone(
    tmp_path: Path, versions: dict[str, str], level: str, words: str
) -> None:
    verdict = packages.judge(installed(site(tmp_path, **versions)))
    assert verdict.level == level and words in verdict.message


def test_a_package_that_is_there_twice_is_told(tmp_path: Path) -> None:
    folders = site(tmp_path / "a", torch="2.8.0", numpy="2.1") + site(tmp_path / "b", torch="2.5.0")
    verdict = packages.judge(installed(folders))
    assert verdict.level == WARNING and "torch is installed twice, as 2.8.0 and as 2.5.0" in verdict.message


def test_a_companion_that_does_not_fit_comes_with_the_one_that_does() -> None:
    told = packages.judge({name: Package(name, version) for name, version in (("torch", "2.6.0"), ("torchvision", "0.19.0"))})
    assert "pip install 'torchvision==0.21.*'" in [command for fix in told.fixes for command in fix.commands]


def test_the_packages_of_this_machine_pass() -> None:
    assert packages.ask(Machine()).level == OK


# MLflow

HOLD = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1]); database.isolation_level = None
database.execute("BEGIN EXCLUSIVE"); print("held", flush=True); sys.stdin.read()
"""


def test_a_database_that_another_process_locks_is_told_with_that_process(tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    sqlite3.connect(file).execute("CREATE TABLE runs (name)").connection.close()
    before = file.read_bytes()
    environment = {"MLFLOW_TRACKING_URI": f"sqlite:///{file}"}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None and other.stdout.readline() == "held\n"
        verdict = mlflow.ask(Machine(), environment)
        assert verdict.level == PROBLEM and f"is locked by process {other.pid}" in verdict.message
        assert verdict.fixes[0].commands == (f"ps -o pid,user,etime,args -p {other.pid}",)
        assert [one.pid for one in holders(file) if one.writes] == [other.pid]
        other.stdin.close()
    assert mlflow.ask(Machine(), environment).level == OK
    assert mlflow.ask(Machine(Plans(folder=tmp_path)), {}).level == OK  # found in the folder without any setting
    assert file.read_bytes() == before


@every_case(
    ("path", "variables", "level", "words"),
    [
        ("", {}, OK, "answers"),
        ("/refuses", {}, PROBLEM, "refuses this user (status 401)"),
        ("/refuses", {"MLFLOW_TRACKING_TOKEN": "let-me-in"}, OK, "answers"),
        ("/other", {}, WARNING, "does not look like an MLflow server"),
    ],
)
def test_an_mlflow_server_is_asked_and_not_only_reached(
    server: str, path: str, variables: dict[str, str], level: str, words: str
) -> None:
    verdict = mlflow.ask(Machine(), {"MLFLOW_TRACKING_URI": server + path, **variables})
    assert verdict.level == level and words in verdict.message


def test_an_mlflow_server_that_is_not_there_is_a_problem_and_its_password_is_not_shown() -> None:
    port = a_closed_port()
    verdict = mlflow.ask(Machine(), {"MLFLOW_TRACKING_URI": f"http://me:hunter22@127.0.0.1:{port}"})
    assert verdict.level == PROBLEM and f"nothing listens on port {port}" in verdict.message
    assert "hunter22" not in str(verdict)
    database = mlflow.ask(Machine(), {"MLFLOW_TRACKING_URI": f"postgresql+psycopg2://me:hunter22@127.0.0.1:{port}/x"})
    assert database.level == PROBLEM and "hunter22" not in str(database)


def test_an_mlflow_that_is_not_used_is_not_asked_for(tmp_path: Path) -> None:
    assert mlflow.ask(Machine(Plans(folder=tmp_path)), {}).level == SKIPPED


# Weights & Biases


@every_case(
    ("variables", "level", "words"),
    [
        ({"WANDB_PROJECT": "x"}, WARNING, "no key"),
        ({"WANDB_API_KEY": "short"}, WARNING, "the key has 5 characters"),
        ({"WANDB_MODE": "offline"}, NOTE, "offline"),
        ({"WANDB_MODE": "disabled"}, NOTE, "disabled"),
        ({"WANDB_API_KEY": KEY, "WANDB_BASE_URL": "CLOSED"}, WARNING, "cannot be reached: nothing listens"),
        ({"WANDB_API_KEY": KEY, "WANDB_BASE_URL": "SERVER"}, OK, "key found"),
    ],
)
def test_what_keeps_weights_and_biases_from_logging_is_told(
    server: str, tmp_path: Path, variables: dict[str, str], level: str, words: str
) -> None:
    places = {"CLOSED": f"http://127.0.0.1:{a_closed_port()}", "SERVER": server}
    verdict = wandb.ask(Machine(), {name: places.get(value, value) for name, value in variables.items()}, home=tmp_path)
    assert verdict.level == level and words in verdict.message and KEY not in str(verdict)


def test_a_key_from_an_earlier_login_counts_and_so_does_a_folder_that_is_offline(server: str, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1\n  login user\n  password {KEY}\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert wandb.ask(Machine(), {"WANDB_BASE_URL": server}, home=tmp_path).level == OK
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nmode = offline\n")
    assert wandb.ask(Machine(Plans(folder=tmp_path)), {"WANDB_BASE_URL": server}, home=tmp_path).level == NOTE


@every_case(
    ("url", "shown"),
    [
        ("https://me:secret@host.example:8080/a?token=x#y", "https://host.example:8080/a"),
        ("sqlite:///mlflow.db", "sqlite:/mlflow.db"),
        ("http://host", "http://host"),
    ],
)
def test_addresses_are_shown_without_what_is_secret_in_them(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


# Slurm and special machines


@every_case(
    ("variables", "cards", "workers", "level", "words"),
    [
        ({}, 0, None, SKIPPED, "not a Slurm job"),
        ({"SLURM_CPUS_PER_TASK": "1"}, 1, None, WARNING, "1 processor a task"),
        ({"SLURM_CPUS_PER_TASK": "4"}, 1, 8, WARNING, "4 processors a task for 8 loader workers"),
        ({"SLURM_CPUS_PER_TASK": "16", "SLURM_NTASKS_PER_NODE": "2"}, 8, 8, WARNING, "2 tasks on a node with 8 GPUs"),
        ({"SLURM_CPUS_PER_TASK": "16", "SLURM_NTASKS_PER_NODE": "8"}, 8, 8, OK, "16 processors a task"),
        ({"SLURM_CPUS_PER_TASK": "16", "SLURM_NTASKS_PER_NODE": "1"}, 8, 8, OK, "1 task"),
    ],
)
def test_a_slurm_job_that_asks_for_too_little_is_told(
    variables: dict[str, str], cards: int, workers: int | None, level: str, words: str
) -> None:
    nvidia = Nvidia(cards=tuple(Card(index=number) for number in range(cards)))
    machine = Machine(Plans(workers=workers), nvidia=nvidia, platform=Platform(cores=64, affinity=16))
    verdict = slurm.ask(machine, {"SLURM_JOB_ID": "7", **variables} if variables else {})
    assert verdict.level == level and words in verdict.message


def test_grace_is_told_from_other_machines_with_the_same_cores() -> None:
    cores = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
    assert is_grace(cores, "NVIDIA\nGH200 P4352\n") and not is_grace(cores, "Amazon EC2\nr8g.large\n")
    assert not is_grace("processor\t: 0\nmodel name\t: x\n", "NVIDIA DGX H100")


def test_grace_hopper_gets_one_worker_more_threads_small_chunks_and_no_compiling_without_triton() -> None:
    machine = Platform(processor="aarch64", cores=72, affinity=72)
    rules = rules_for(machine, card_names=("NVIDIA GH200 480GB",), triton=False)
    assert (rules.workers, rules.threads, rules.compile, rules.chunk_rows) == (1, 16, False, 10_000) and len(rules.because) == 4
    assert rules_for(machine, card_names=("NVIDIA GH200 480GB",), triton=True).compile is None
    verdict = platform_check.ask(Machine(platform=machine, nvidia=Nvidia(cards=(Card(index=0, name="NVIDIA GH200 480GB"),))))
    assert verdict.level == NOTE and "1 loader worker" in verdict.message and verdict.evidence["workers"] == 1


@every_case("name", ["NVIDIA H200", "NVIDIA A100-SXM4-80GB"])
def test_an_ordinary_machine_gets_no_rules(name: str) -> None:
    assert rules_for(Platform(cores=64, affinity=64), card_names=(name,)).because == ()


@every_case(
    ("variables", "words"),
    [({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, "only /kaggle/working is kept"), ({"COLAB_RELEASE_TAG": "x"}, "mounted Drive")],
)
def test_a_notebook_service_says_what_is_lost_with_the_session(tmp_path: Path, variables: dict[str, str], words: str) -> None:
    verdict = platform_check.ask(Machine(platform=read_platform(variables, root=tmp_path), nvidia=Nvidia()))
    assert verdict.level == NOTE and words in verdict.message


def test_this_machine_is_read_without_trouble(tmp_path: Path) -> None:
    seen = read_platform({"SLURM_JOB_ID": "7"}, root=tmp_path)
    assert seen.slurm and not seen.container and seen.cores >= 1 and seen.memory > 0 and 0 < seen.usable <= seen.cores


def test_what_was_not_compiled_is_told_with_what_it_costs(tmp_path: Path) -> None:
    (tmp_path / "probe/attach").mkdir(parents=True)
    (tmp_path / "probe/attach" / f"_enter{importlib.machinery.EXTENSION_SUFFIXES[0]}").touch()
    verdict = compiled_parts.judge(tmp_path)
    assert verdict.level == NOTE and "gradients" in verdict.message and "attach" not in verdict.message
    assert verdict.evidence == {"_by_address": False, "_enter": True}
