from __future__ import annotations

from pathlib import Path

from every_case import every_case
from made_stacks import fetching, thread, waiting_for_loader, worker

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.diagnosis import diagnose
from holdfast.probe.stacks.frames import Frame
from holdfast.probe.stacks.loading import waits_for
from holdfast.probe.stacks.sentence import explain

PACKAGES = "/venv/lib/python3.11/site-packages"
LIBRARY = "/usr/lib/python3.11"
OWN = Frame("Samples.read", "/job/data.py", 6)


@every_case(
    ("frames", "call", "kind", "cause"),
    [
        ((OWN,), "sleep", "sleep", "worker-stuck"),
        ((OWN,), "read /nfs/13.png", "file", "slow-storage"),
        ((OWN,), "open /nfs/13.png", "file", "slow-storage"),
        ((OWN,), "read socket:[5]", "network", "data-not-sent"),
        ((Frame("Popen.communicate", f"{LIBRARY}/subprocess.py", 1209), OWN), "poll", "process", "worker-stuck"),
        ((Frame("SSLSocket.read", f"{LIBRARY}/ssl.py", 1166), OWN), "poll", "network", "data-not-sent"),
        ((Frame("send", f"{PACKAGES}/botocore/httpsession.py", 464), OWN), None, "network", "data-not-sent"),
        ((OWN,), "flock /data/.lock", "lock", "deadlock"),
    ],
)
def test_the_cause_of_a_worker_that_stands_is_what_its_stack_shows(
    frames: tuple[Frame, ...], call: str | None, kind: str, cause: str
) -> None:
    stuck = worker(1, *fetching("13", *frames), call=call)
    verdict = explain([waiting_for_loader(), worker(0), stuck])
    assert verdict.evidence["waits_for"] == kind
    finding = Finding("loader-stall", step=30, severity="critical", evidence={**verdict.evidence, "say": verdict.say})
    assert diagnose([finding]).causes[0] == cause


def test_a_lock_is_seen_in_the_line_that_takes_it(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("def read(self):\n    with self.lock:\n        pass\n")
    frame = Frame("Samples.read", str(tmp_path / "data.py"), 2)
    assert waits_for(thread(1, frame, call="futex")) == "lock"
    assert waits_for(thread(1, frame, call=None)) == "lock"


def test_where_nothing_is_known_nothing_is_said() -> None:
    assert waits_for(thread(1, OWN, call=None)) is None
    assert waits_for(thread(1, OWN, call=None, active=True)) == "compute"
