"""What `doctor` reports about limits, memory, processors, disks, the clock and access to processes; faults are real."""

from __future__ import annotations

import json
import mmap
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from every_case import every_case

from holdfast.environment.cgroup import Limits, read_limits
from holdfast.environment.check import NOTE, OK, PROBLEM, WARNING, Verdict
from holdfast.environment.checks import clock, disk_space, disk_speed, limits, memory, processors, shared_memory, stacks
from holdfast.environment.machine import Machine, Plans
from holdfast.environment.platform import Platform
from holdfast.environment.py_spy import path_of_py_spy
from holdfast.environment.torch_facts import TorchFacts

ASK = """
import json, sys
from importlib import import_module
from holdfast.environment.machine import Machine
verdict = import_module("holdfast.environment.checks." + sys.argv[1]).ask(Machine())
print(json.dumps([verdict.level, verdict.message]))
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def asked(check: str, **how: object) -> tuple[str, str]:
    """A check's level and sentence, asked in a process of its own."""
    done = subprocess.run([sys.executable, "-c", ASK, check], capture_output=True, text=True, check=False, timeout=600, **how)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    level, message = json.loads(done.stdout)
    return level, message


def on(**facts: object) -> Machine:
    """A Linux machine with eight processors and these facts."""
    return Machine(platform=Platform(cores=8, affinity=8, memory=64 << 30, **facts))  # type: ignore[arg-type]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a file system of its own."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(words, capture_output=True, check=False).returncode != 0:
            pytest.skip("nothing may be mounted here")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=False)


# limits


@every_case(("files", "level"), [(128, PROBLEM), (512, WARNING), (1024, NOTE), (4096, OK)])
def test_few_open_files_are_told_before_a_loader_runs_out_of_them(files: int, level: str) -> None:
    hard = max(files, min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 8192))

    def fewer() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    assert asked("limits", preexec_fn=fewer)[0] == level


KEEPS = """
import resource, sys, torch
from torch.utils.data import DataLoader
soft = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, max(soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
kept = [batch for batch in DataLoader(list(range(1100)), batch_size=1, num_workers=1)]
print(len(kept))
"""


@pytest.mark.slow
@every_case(("files", "ends"), [(1024, "Too many open files"), (4096, "1100")])
def test_a_loader_whose_batches_are_kept_needs_more_than_1024_files(files: int, ends: str) -> None:
    done = subprocess.run([sys.executable, "-c", KEEPS, str(files)], capture_output=True, text=True, check=False, timeout=600)
    assert ends in done.stdout + done.stderr or ("received 0 items of ancdata" in done.stderr and files == 1024)


def test_a_group_that_is_short_of_processes_is_a_problem() -> None:
    verdict = limits.ask(on(limits=Limits(processes=100, processes_used=60)))
    assert verdict.level == PROBLEM and "pids.max is 100, 60 in use" in verdict.message


def test_locked_memory_matters_only_where_there_is_infiniband(tmp_path: Path) -> None:
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < 0:
        pytest.skip("all memory may be locked here")
    assert "locked in memory" not in limits.ask(on(), infiniband=tmp_path).message
    (tmp_path / "mlx5_0").mkdir()
    assert "locked in memory" in limits.ask(on(), infiniband=tmp_path).message


# /dev/shm


@linux
def test_the_64_mb_of_a_plain_container_are_a_problem_for_loader_workers(small_disk: Callable[[str], Path]) -> None:
    verdict = shared_memory.ask(on(container=True), small_disk("size=64m"))
    assert verdict.level == PROBLEM and "bus error" in verdict.message
    assert "docker run --shm-size=8g IMAGE" in verdict.fixes[0].commands


@linux
def test_shared_memory_is_judged_by_the_workers_and_batches_that_are_planned(small_disk: Callable[[str], Path]) -> None:
    folder, platform = small_disk("size=64m"), Platform(cores=8, affinity=8)
    small = shared_memory.ask(Machine(Plans(workers=2, batch=4 << 20), platform=platform), folder)
    large = shared_memory.ask(Machine(Plans(workers=2, batch=40 << 20), platform=platform), folder)
    assert small.level == OK and large.level == PROBLEM and large.evidence["needed"] == 5 * (40 << 20)


@linux
def test_what_ended_trainings_left_in_shared_memory_is_listed_and_that_of_living_ones_is_not(
    small_disk: Callable[[str], Path],
) -> None:
    folder = small_disk("size=64m")
    ended = subprocess.Popen(["true"])
    ended.wait()
    (folder / f"torch_{ended.pid}_123_0").write_bytes(b"x" * (20 << 20))
    (folder / f"torch_{os.getpid()}_123_0").write_bytes(b"x")
    (folder / f"torch_{ended.pid}_456_0").write_bytes(b"x" * 4096)
    with (folder / f"torch_{ended.pid}_456_0").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        left = [path.name for path, _ in shared_memory.left_over(folder)]
    assert left == [f"torch_{ended.pid}_123_0"]
    (folder / f"torch_{ended.pid}_456_0").unlink()
    assert "1 file of finished trainings use 20 MiB" in shared_memory.ask(on(), folder).message
    assert "finished trainings" not in shared_memory.ask(on(container=True), folder).message  # they may be a neighbour's


def test_a_missing_shared_memory_is_a_problem(tmp_path: Path) -> None:
    assert shared_memory.ask(on(), tmp_path / "none").level == PROBLEM


# control groups, memory, processors


def test_limits_of_a_container_are_read_in_version_2_the_smallest_on_the_way_up(tmp_path: Path) -> None:
    inner = tmp_path / "kubepods" / "pod1"
    inner.mkdir(parents=True)
    (tmp_path / "kubepods" / "memory.max").write_text("4294967296\n")
    (tmp_path / "kubepods" / "memory.current").write_text("1073741824\n")
    (tmp_path / "kubepods" / "memory.stat").write_text("anon 1\ninactive_file 73741824\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "cpu.max").write_text("150000 100000\n")
    (inner / "pids.max").write_text("512\n")
    (inner / "pids.current").write_text("7\n")
    seen = read_limits(tmp_path, "0::/kubepods/pod1\n")
    assert seen == Limits(memory=4 << 30, memory_used=1_000_000_000, cpus=1.5, processes=512, processes_used=7)


def test_limits_are_read_in_version_1_and_a_huge_number_is_none(tmp_path: Path) -> None:
    for kind in ("memory", "cpu,cpuacct"):
        (tmp_path / kind / "docker").mkdir(parents=True)
    (tmp_path / "memory" / "docker" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "cpu,cpuacct" / "docker" / "cpu.cfs_quota_us").write_text("200000\n")
    (tmp_path / "cpu,cpuacct" / "docker" / "cpu.cfs_period_us").write_text("100000\n")
    seen = read_limits(tmp_path, "4:memory:/docker\n3:cpu,cpuacct:/docker\n")
    assert seen == Limits(cpus=2.0)


def test_a_real_group_with_a_quota_is_seen_by_a_process_in_it() -> None:
    top = Path("/sys/fs/cgroup/cpu")
    group = top / f"holdfast-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("50000")
    except OSError:
        pytest.skip("no control group of version 1 can be made here")
    try:
        join = f"echo $$ > {group}/tasks && exec {shlex.quote(sys.executable)} -c "
        code = "from holdfast.environment.platform import read_platform; print(read_platform().usable)"
        done = subprocess.run(["sh", "-c", f'{join} "{code}"'], capture_output=True, text=True, check=False, timeout=600)
        assert done.stdout.strip() == "0.5", done.stderr
    finally:
        time.sleep(0.1)
        group.rmdir()


def test_a_limit_below_what_the_machine_shows_is_said_and_running_out_is_a_problem() -> None:
    limited = on(limits=Limits(memory=16 << 30, memory_used=0))
    assert memory.ask(limited, available=60 << 30).level == NOTE
    assert "programs see 64 GiB" in memory.ask(limited, available=60 << 30).message
    assert memory.ask(on(), available=500 << 20).level == PROBLEM
    assert memory.ask(on(), available=60 << 30).level == OK


@every_case(("quota", "threads", "level"), [(2.0, 64, WARNING), (2.0, 2, NOTE), (None, 8, OK), (None, 1, NOTE), (1.5, 2, NOTE)])
def test_more_threads_than_processors_are_told(quota: float | None, threads: int, level: str) -> None:
    platform = Platform(cores=8, affinity=8, limits=Limits(cpus=quota))
    assert processors.ask(Machine(platform=platform, torch=TorchFacts(threads=threads))).level == level


# disks


@linux
def test_a_disk_without_room_or_without_inodes_is_told(small_disk: Callable[[str], Path]) -> None:
    full = small_disk("size=16m")
    (full / "ballast").write_bytes(b"x" * (15 << 20))
    assert disk_space.ask(Machine(Plans(folder=full))).level == PROBLEM
    files = small_disk("size=32m,nr_inodes=200")
    for number in range(196):
        (files / str(number)).touch()
    verdict = disk_space.ask(Machine(Plans(folder=files)))
    assert verdict.level == PROBLEM and "more files" in verdict.message


def test_a_folder_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    assert disk_space.room_in(tmp_path / "none", "runs").level == PROBLEM


def test_the_speed_of_the_disk_is_measured_and_nothing_is_left_behind(tmp_path: Path) -> None:
    verdict = disk_speed.ask(Machine(Plans(folder=tmp_path)))
    assert verdict.evidence["bytes a second"] > 0 and not list(tmp_path.iterdir())


@linux
def test_a_disk_that_takes_long_to_write_is_told_with_what_it_means_for_a_checkpoint(
    compiled: Callable[[str, str], Path],
) -> None:
    library = compiled("fake_slow_disk.c", "disk.so")
    level, message = asked("disk_speed", env={**os.environ, "LD_PRELOAD": str(library)})
    assert level == WARNING and "training waits for every save" in message


@linux
def test_a_full_disk_is_not_filled_further_by_the_measurement(small_disk: Callable[[str], Path]) -> None:
    folder = small_disk("size=16m")
    assert disk_speed.write_speed(folder) > 0
    assert disk_speed.file_system(folder) == "tmpfs"


# the clock


@pytest.fixture(scope="module")
def clock_library(compiled: Callable[[str, str], Path]) -> Path:
    return compiled("fake_clock.c", "clock.so")


@linux
def test_a_clock_that_is_wrong_or_jumps_is_told(clock_library: Path) -> None:
    cases = [
        ({"CLOCK_OFFSET": "-1000000000"}, PROBLEM, "before this package was installed"),
        ({"CLOCK_OFFSET": "-300"}, WARNING, "new files are dated +300 s off this machine's clock"),
        ({"CLOCK_OFFSET": "300"}, WARNING, "new files are dated -300 s off this machine's clock"),
        ({"CLOCK_JUMP": "30"}, WARNING, "jumped by +30"),
    ]

    def ask(off: dict[str, str]) -> tuple[str, str]:
        return asked("clock", env={**os.environ, **off, "LD_PRELOAD": str(clock_library)})

    with ThreadPoolExecutor(len(cases)) as pool:  # each watches the clock for a second
        seen = list(pool.map(ask, [off for off, _, _ in cases]))
    wrong = [(case, found) for case, found in zip(cases, seen, strict=True) if found[0] != case[1] or case[2] not in found[1]]
    assert not wrong


def test_the_clock_of_this_machine_is_left_in_peace() -> None:
    assert clock.ask(Machine()).level == OK


# looking into processes


@linux
def test_a_system_that_refuses_to_let_processes_be_read_is_believed(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become a user who may less")
    code = "from holdfast.environment.checks.stacks import try_stranger; print(try_stranger())"
    weaker = ["setpriv", "--bounding-set", "-sys_ptrace,-dac_override,-dac_read_search"]
    unreadable = tmp_path / "sleep"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", unreadable)
    unreadable.chmod(0o111)  # a program that nobody may read leaves processes that nobody may read
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([*weaker, sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == "Permission denied", done.stderr


@every_case("scope", [1, 2])
def test_a_refusal_names_the_setting_that_causes_it(scope: int) -> None:
    verdict = stacks.why_refused("Permission denied", scope, on(), {})
    assert verdict.level == WARNING and f"ptrace_scope is {scope}" in verdict.message
    assert verdict.fixes[0].commands == ("sudo sysctl kernel.yama.ptrace_scope=0",)


def test_looking_into_processes_is_allowed_here() -> None:
    verdict: Verdict = stacks.ask(Machine())
    assert verdict.level in (OK, NOTE, WARNING)
    if sys.platform == "linux" and os.geteuid() == 0:
        assert verdict.level == OK


def test_py_spy_is_found_where_its_package_is_even_if_that_is_neither_beside_python_nor_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    path = path_of_py_spy()
    assert path is not None and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0
