"""torchrun on two hosts with `holdfast run` on each: one run, asked from either host; a rank, a host, a collective that fail."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from two_hosts import PYTHON, Host, two_hosts, wait_for

from holdfast.signals.pulse import read_pulse
from holdfast.signals.run_folder import Recording, RunFolder

pytestmark = pytest.mark.cluster
HERE = Path(__file__).parent
SAVES = str(HERE / "saved_digits.py")
PAGE = (HERE.parents[1] / "docs" / "launch.md").read_text().partition("## torchrun on several machines")[2]
DOCUMENTED, ASKED = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1:3]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    with two_hosts(tmp_path) as started:
        yield started


def documented(block: str, options: tuple[str, ...], torchrun: tuple[str, ...], script: tuple[str, ...]) -> list[str]:
    """The command of the page, with two ranks a node and the script of the test."""
    words = block.replace("\\\n", " ").split()
    words = words[words.index("holdfast") :]
    at = words.index("torchrun")
    run = [PYTHON, "-m", "holdfast", *words[1 : at - 1], *options, "--"]
    ranks = " ".join(words[at + 1 : words.index("train.py")])
    ranks = ranks.replace("--nnodes 2", " ".join(torchrun)).replace("--nproc-per-node 8", "--nproc-per-node 2")
    return [*run, PYTHON, "-m", "torch.distributed.run", *ranks.split(), *script]


class Job:
    """`holdfast run … torchrun` of two ranks on each host, in one shared folder."""

    def __init__(
        self,
        hosts: list[Host],
        folder: Path,
        *words: str,
        options: tuple[str, ...] = (),
        torchrun: tuple[str, ...] = ("--nnodes", "2"),
        seen: Path | None = None,
        **environment: str,
    ) -> None:
        """`seen` is where the folder of the first host is seen from here."""
        self.hosts, self.folder, self._words, self._options, self._torchrun = hosts, folder, words, options, torchrun
        self.seen, self._environment = seen or folder, environment
        self.run = RunFolder(self.seen / "runs" / "night")
        self.processes = {one.number: self.start(one) for one in hosts}

    def start(self, host: Host) -> subprocess.Popen[bytes]:
        words = documented(DOCUMENTED, self._options, self._torchrun, self._words)
        limits = {"HOLDFAST_NODE_AFTER": "30", "HOLDFAST_BACK_OFF": "0.01"}
        return host.start(*words, cwd=self.folder, out=self.out(host), **{**limits, **self._environment})

    def out(self, host: Host) -> Path:
        return host.folder / f"printed-{host.number}"

    def log(self) -> str:
        printed = [self.out(one).read_text() for one in self.hosts if self.out(one).exists()]
        return "\n".join([*printed, *(json.dumps(row) for row in self.rows())])

    def rows(self, kind: str | None = None) -> list[dict[str, Any]]:
        rows = list(self.run.journal) if self.run.path.is_dir() else []
        return [row for row in rows if kind in (None, row.get("kind"))]

    def ranks(self, part: int = 0) -> list[Recording]:
        return [one for one in self.run.recordings() if one.part == part] if self.run.path.is_dir() else []

    def wait_for_steps(self, number: int, part: int = 0) -> None:
        """Until four ranks have made so many steps in an attempt."""

        def far_enough() -> bool:
            pulses = [read_pulse(one) for one in self.ranks(part)]
            return len(pulses) == 4 and all(pulse is not None and pulse.steps >= number for pulse in pulses)

        wait_for(far_enough, self.log)

    def ended(self) -> None:
        for host in self.hosts:
            wait_for(lambda host=host: self.processes[host.number].poll() is not None, self.log)  # type: ignore[misc]
        assert [self.processes[host.number].returncode for host in self.hosts] == [0] * len(self.hosts), self.log()

    def result(self) -> dict[str, Any]:
        self.ended()
        return dict(json.loads((self.seen / "out" / "out.json").read_text()))

    def resumed_from(self) -> int:
        (row,) = (row for row in self.rows("action") if row.get("action") == "restart")
        assert row["state"] == "done", self.log()
        return int(row["checkpoint_step"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", SAVES, "out", "6", "0")
    done = subprocess.run([PYTHON, *words], cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads((folder / "out" / "out.json").read_text())
    assert result["steps"] == 60
    return result


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """All steps, and the weights and moments: up to rounding, as the order of a sum over four ranks depends on DDP's buckets."""
    assert one["steps"] == other["steps"]
    assert one["values"] == pytest.approx(other["values"], abs=1e-6)


def check_all_is_seen(host: Host, folder: Path) -> None:
    """The commands of the page work on this host, and show all ranks."""
    for line in ASKED.splitlines():
        out = host.folder / "asked"
        words = line.replace("holdfast", f"{PYTHON} -m holdfast", 1)
        code = host.start("sh", "-c", words, cwd=folder, out=out).wait()
        assert code == 0 or (code == 1 and "backtrace" in line), out.read_text()  # 1: held for long, it counts as stuck
    listed = host.holdfast("ps", "night", "--json", cwd=folder)
    assert [one["rank"] for one in json.loads(listed)[0]["ranks"]] == [0, 1, 2, 3], listed
    counted = host.holdfast("query", "night", "SELECT count(DISTINCT rank) FROM steps", cwd=folder)
    assert counted.split()[-1] == "4", counted
    stacks = json.loads(host.holdfast("backtrace", "night", "--json", "--no-native", cwd=folder).splitlines()[0])
    report = stacks[0] if isinstance(stacks, list) else stacks
    ranks = {one["rank"]: one["host"] for one in report["processes"] if one["threads"] and one["rank"] is not None}
    assert sorted(ranks) == [0, 1, 2, 3] and set(ranks.values()) == {"node0", "node1"}, stacks


def test_every_rank_is_seen_from_every_host(hosts: list[Host], tmp_path: Path) -> None:
    job = Job(hosts, tmp_path, SAVES, "out", "1000", "0.3")
    job.wait_for_steps(5)
    for host in hosts:
        check_all_is_seen(host, tmp_path)
        assert "night" in host.holdfast("ps", cwd=Path("/")), "each host lists the run as live"


def test_a_killed_rank_is_named_and_all_ranks_resume_from_one_checkpoint(
    hosts: list[Host], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    job = Job(hosts, tmp_path, SAVES, "out", "6", "0.2")
    job.wait_for_steps(12)
    victim = next(one for one in job.ranks() if one.rank == 3).info()
    host = next(one for one in hosts if one.name == victim["host"])
    host.start("kill", "-9", str(victim["pid"]), cwd=tmp_path, out=tmp_path / "killed").wait()
    check_same(job.result(), undisturbed)
    assert job.resumed_from() >= 10
    (died,) = (row for row in job.rows("finding") if row["code"] == "process-died")
    assert (died["evidence"]["rank"], died["evidence"]["host"]) == (3, victim["host"]), died
    assert "SIGKILL" in died["evidence"]["ended"]


def test_a_host_that_is_switched_off_is_named_and_the_run_resumes_when_it_is_back(
    hosts: list[Host], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    job = Job(hosts, tmp_path, SAVES, "out", "6", "0.2")
    job.wait_for_steps(12)
    hosts[1].power_off()
    wait_for(lambda: [row for row in job.rows("action") if row.get("action") == "restart"], job.log)
    hosts[1].power_on()
    job.processes[1] = job.start(hosts[1])
    check_same(job.result(), undisturbed)
    lost = [row for row in job.rows("finding") if row["code"] == "process-died"]
    assert [(row["evidence"]["host"], row["evidence"]["lost_ranks"]) for row in lost] == [("node1", [2, 3])], lost
    assert job.resumed_from() >= 10


def test_when_the_first_host_is_lost_the_others_wait_for_it_and_the_run_resumes(
    hosts: list[Host], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    job = Job(hosts, tmp_path, SAVES, "out", "6", "0.2")
    job.wait_for_steps(12)
    hosts[0].power_off()
    wait_for(lambda: "waiting for node 0" in job.out(hosts[1]).read_text(), job.log)
    hosts[0].power_on()
    job.processes[0] = job.start(hosts[0])
    check_same(job.result(), undisturbed)
    assert all(row["by"] == "torchrun" for row in job.rows("action") if row.get("action") == "restart"), job.log()
    (lost,) = (row for row in job.rows("finding") if row["code"] == "process-died")
    assert lost["evidence"]["host"] == "node0", lost
    assert "resumed from step-" in job.out(hosts[0]).read_text()


def test_the_rank_that_a_collective_waits_for_is_named_with_its_stack_before_anything_is_ended(
    hosts: list[Host], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    job = Job(hosts, tmp_path, SAVES, "out", "6", "0.2", "hang", options=("--hang-after", "3"))
    check_same(job.result(), undisturbed)
    (stall,) = (row for row in job.rows("finding") if row["severity"] == "critical")
    assert stall["code"] == "collective-stall" and stall["evidence"]["missing"] == [3], stall
    assert re.search(r"saved_digits\.py:\d+ in wait_for_a_file$", stall["evidence"]["where"]), stall
    rows = job.rows()
    ended = next(number for number, row in enumerate(rows) if row.get("action") == "end-processes")
    assert rows.index(stall) < ended and stall["evidence"]["stacks"]
    assert job.resumed_from() >= 10


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[list[Host]]:
    (tmp_path / "own").mkdir()
    with two_hosts(tmp_path, private=tmp_path / "own") as started:
        yield started


def test_hosts_without_a_shared_folder_are_one_run_and_resume_together(
    apart: list[Host], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    own, seen = tmp_path / "own", tmp_path / "disk-0"
    first = Job(apart[:1], own, SAVES, "out", "6", "0.2", "hold", options=("--listen", "node0:8080"), seen=seen)
    token = wait_for(
        lambda: next(iter((seen / "runs").glob("night/token")), None) if (seen / "runs").is_dir() else None, first.log
    )
    (tmp_path / "disk-1" / "token").write_bytes(token.read_bytes())
    (tmp_path / "disk-1" / "token").chmod(0o600)
    second = Job(
        apart[1:],
        own,
        SAVES,
        "out",
        "6",
        "0.2",
        "hold",
        options=("--join", "node0:8080"),
        seen=tmp_path / "disk-1",
        HOLDFAST_TOKEN_FILE="token",
    )
    first.wait_for_steps(8)  # node 0 has the tables of all four ranks
    assert {one.rank for one in second.ranks()} == {2, 3}, "the other host has its own only"
    for host in apart:
        check_all_is_seen(host, own)
    for disk in (seen, tmp_path / "disk-1"):
        (disk / "go").touch()
    first.wait_for_steps(15)
    victim = next(one for one in second.ranks() if one.rank == 3).info()
    apart[1].start("kill", "-9", str(victim["pid"]), cwd=own, out=tmp_path / "killed").wait()
    second.ended()
    check_same(first.result(), undisturbed)
    (died,) = (row for row in first.rows("finding") if row["code"] == "process-died")
    assert (died["evidence"]["rank"], died["evidence"]["host"]) == (3, "node1"), died
    assert first.resumed_from() >= 5
    fetched = [path.name for path in (tmp_path / "disk-1" / "runs/night/checkpoints").iterdir()]
    assert fetched == [f"step-{first.resumed_from():06d}"]


def test_ranks_that_torchrun_restarts_itself_resume_from_the_same_checkpoint(
    hosts: list[Host], undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    job = Job(hosts, tmp_path, SAVES, "out", "6", "0.2", torchrun=("--nnodes", "2", "--max-restarts", "2"))
    job.wait_for_steps(12)
    victim = next(one for one in job.ranks() if one.rank == 3).info()
    host = next(one for one in hosts if one.name == victim["host"])
    host.start("kill", "-9", str(victim["pid"]), cwd=tmp_path, out=tmp_path / "killed").wait()
    check_same(job.result(), undisturbed)
    (row,) = (row for row in job.rows("action") if row.get("action") == "restart")
    assert row["by"] == "torchrun" and row["checkpoint_step"] >= 10, row


def worlds_in(job: Job) -> list[tuple[int, int]]:
    """Of each start of rank 0: how many ranks there were, and the last step that it made."""
    files = sorted((job.seen / "out").glob("*-0-*.jsonl"), key=lambda path: float(path.name.partition("-")[0]))
    steps = [path.read_text().splitlines() for path in files]
    return [
        (int(path.name.split("-")[1]), json.loads(rows[-1])["step"] if rows else 0)
        for path, rows in zip(files, steps, strict=True)
    ]


@pytest.mark.parametrize("node_after", ["600", "3"])  # seconds: it is back before it counts as lost, or is lost for long
def test_with_elastic_torchrun_a_node_leaves_the_other_trains_on_and_it_joins_again(
    hosts: list[Host], undisturbed: dict[str, Any], tmp_path: Path, node_after: str
) -> None:
    elastic = ("--nnodes", "1:2", "--max-restarts", "3", "--rdzv-conf", "last_call_timeout=5")
    job = Job(hosts, tmp_path, SAVES, "out", "6", "1.0", torchrun=elastic, HOLDFAST_NODE_AFTER=node_after)
    job.wait_for_steps(7)
    hosts[1].power_off()
    wait_for(lambda: worlds_in(job)[-1][0] == 2 and worlds_in(job)[-1][1] >= 12, job.log)
    hosts[1].power_on()
    job.processes[1] = job.start(hosts[1])
    check_same(job.result(), undisturbed)
    worlds = [world for world, _ in worlds_in(job)]
    assert worlds[0] == 4 and 2 in worlds and worlds[-1] == 4, worlds
    resumed = [row["checkpoint_step"] for row in job.rows("action") if row.get("action") == "restart"]
    assert len(resumed) == len(worlds) - 1 and all(step is not None and step >= 5 for step in resumed), job.log()
    assert all(row["by"] == "torchrun" for row in job.rows("action") if row.get("action") == "restart"), job.log()
    (lost,) = (row for row in job.rows("finding") if row["severity"] in ("warning", "critical"))
    assert lost["code"] == "process-died" and lost["evidence"]["host"] == "node1", job.log()
    assert [row["causes"][:1] for row in job.rows("diagnosis")] == [["machine-lost"]], job.log()
