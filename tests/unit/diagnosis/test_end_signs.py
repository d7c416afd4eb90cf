"""What an end says about its cause: the first cause named is the one that a person should look at."""

from __future__ import annotations

from typing import Any

from every_case import every_case

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.diagnosis import diagnose

GB = 1 << 30


@every_case(
    ("code", "evidence", "cause"),
    [
        ("process-died", {"exit_code": 137}, "killed-from-outside"),
        ("process-died", {"exit_code": 139}, "crash-in-a-library"),
        ("process-died", {"exit_code": 143}, "ended-by-the-scheduler"),
        ("process-died", {"exit_code": 2}, "exited-by-itself"),
        ("process-died", {"exit_code": 1, "error": "Signal 9 (SIGKILL) received by PID 7", "ranks": 2}, "killed-from-outside"),
        ("process-died", {"exit_code": 1, "error": "Signal 11 (SIGSEGV) received by PID 7", "ranks": 2}, "crash-in-a-library"),
        ("tracker-unreachable", {"error": "sqlite3.OperationalError: database is locked"}, "database-locked"),
        ("tracker-unreachable", {"error": "mlflow.log_metric stalled the training", "waits_in": "sqlalchemy"}, "database-locked"),
        (
            "tracker-unreachable",
            {"error": "mlflow.log_metric stalled the training for 9 s", "server": "mlflow", "waits_in": "urllib3"},
            "server-does-not-answer",
        ),
        ("tracker-unreachable", {"error": "ConnectionRefusedError: refused", "server": "h:5000"}, "server-does-not-answer"),
        ("tracker-unreachable", {"error": "urllib3 … Max retries exceeded with url: /api"}, "server-does-not-answer"),
        ("tracker-unreachable", {"error": "wandb.errors.CommError: 401 Unauthorized"}, "no-key"),
        ("checkpoint-incompatible", {"error": "WeightsUnpickler error: Unsupported global: GLOBAL a.B"}, "objects-in-checkpoint"),
        ("checkpoint-incompatible", {"error": "RuntimeError: size mismatch for head.weight"}, "architecture-changed"),
        ("parameters-not-trained", {"ended": "ended with RuntimeError", "loss": 0.14}, "loss-replaced"),
        ("parameters-not-trained", {"ended": "ended with RuntimeError"}, "frozen-by-mistake"),
        ("collective-stall", {"error": "what(): op.preamble.length <= op.nbytes. 5516 vs 4."}, "collective-mismatch"),
        ("collective-stall", {"error": "RuntimeError: … Connection closed by peer"}, "dead-rank"),
        (
            "host-out-of-memory",
            {"memory_first": GB, "memory_last": GB, "machine_memory": 24 * GB, "workers": 0},
            "limit-on-the-process",
        ),
        ("gpu-out-of-memory", {"error": "CUDA out of memory. Tried … 182.00 MiB allowed; Of the …"}, "part-of-the-card"),
        ("gpu-out-of-memory", {"error": "CUDA out of memory. Tried to allocate 2.00 GiB."}, "micro-batch-too-large"),
        ("straggler", {"rank": 1, "data_bound": True}, "slow-storage"),
        ("straggler", {"rank": 1, "data_bound": False}, "uneven-work"),
    ],
)
def test_the_first_cause_is_what_the_end_says(code: str, evidence: dict[str, Any], cause: str) -> None:
    found = Finding(code, step=9, severity="critical", evidence=evidence)
    assert diagnose([found]).causes[0] == cause


def test_a_run_that_was_interrupted_with_ctrl_c_needs_no_cause() -> None:
    assert diagnose([Finding("process-died", step=7, evidence={"exit_code": 130})]).causes == ()


def test_memory_that_grew_until_the_kernel_killed_it_is_no_limit_on_the_process() -> None:
    evidence = {"memory_first": GB, "memory_last": 11 * GB, "machine_memory": 24 * GB, "killed_for_memory": 1, "workers": 4}
    found = Finding("host-out-of-memory", step=9, severity="critical", evidence=evidence)
    assert "limit-on-the-process" not in diagnose([found]).causes
    assert diagnose([found]).causes[0] == "host-memory-leak"
