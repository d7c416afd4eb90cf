"""What a command died of."""

from __future__ import annotations

from every_case import every_case

from holdfast.diagnosis.diagnosis import diagnose
from holdfast.diagnosis.endings import Ended, error_of, finding_of, trend, words_of
from holdfast.diagnosis.error_search import search_text
from holdfast.diagnosis.ranking import rank
from holdfast.signals.curves import Curves

UNKNOWN = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: sample 4711 has no label\n'
GPU = 'Traceback (most recent call last):\n  File "a.py", line 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n'
WORKER = "Traceback (most recent call last):\nRuntimeError: DataLoader worker (pid 12) is killed by signal: Killed.\n"
KERNEL = (
    "Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: thread: [5,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
    "Traceback (most recent call last):\ntorch.AcceleratorError: CUDA error: device-side assert triggered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
)
ABORT = "terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  CUDA error: an unknown one\n"
LAUNCHER = "  traceback : Signal 9 (SIGKILL) received by PID 4711\n"


def died(code: int, text: str = "", **more: int) -> Ended:
    return Ended(exit_code=code, step=7, search=search_text(text), **more)  # type: ignore[arg-type]


@every_case(
    ("ended", "code", "cause"),
    [
        (died(139), "process-died", "crash-in-a-library"),
        (died(134), "process-died", "crash-in-a-library"),
        (died(134, KERNEL + ABORT), "token-out-of-range", "labels-out-of-range"),
        (died(134, GPU + "step\n" * 300 + ABORT), "process-died", "crash-in-a-library"),  # it went on after that error
        (died(139, KERNEL), "process-died", "crash-in-a-library"),
        (died(137), "process-died", "killed-from-outside"),
        (died(143), "process-died", "ended-by-the-scheduler"),
        (died(137, killed_for_memory=1), "host-out-of-memory", None),
        (died(1, WORKER, killed_for_memory=1), "host-out-of-memory", None),
        (died(1, WORKER), "loader-stall", None),
        (died(1, GPU), "gpu-out-of-memory", None),
        (died(1, KERNEL), "token-out-of-range", "labels-out-of-range"),
        (died(1, UNKNOWN), "script-error", "mistake-in-the-script"),
        (died(1, LAUNCHER), "host-out-of-memory", None),
        (died(1, LAUNCHER, killed_for_memory=0), "process-died", None),
        (died(3), "process-died", None),
    ],
)
def test_an_end_has_the_code_of_what_ended_it(ended: Ended, code: str, cause: str | None) -> None:
    finding = finding_of(ended)
    assert (finding.code, finding.severity, finding.step) == (code, "critical", 7)
    causes = diagnose([finding]).causes
    assert causes and (cause is None or causes[0] == cause)


def test_the_error_is_named_with_its_class() -> None:
    assert error_of(died(1, UNKNOWN)) == ("ValueError", "ValueError: sample 4711 has no label")
    assert error_of(died(1, GPU))[0] == "OutOfMemoryError"
    assert error_of(died(137)) == (None, None)
    name, line = error_of(died(1, KERNEL))
    assert name == "AcceleratorError" and line is not None and "t < n_classes" in line, "what the kernel says tells more"


def test_it_is_said_in_words() -> None:
    assert words_of(died(137, killed_for_memory=2)) == "killed by the kernel's OOM killer"
    assert words_of(died(139)) == "ended by a segmentation fault"
    assert words_of(died(143)) == "ended by SIGTERM"
    assert words_of(died(1, UNKNOWN)) == "ended with ValueError"
    assert words_of(died(3)) == "exited with code 3"


def test_open_files_are_told_only_near_their_limit() -> None:
    near, far = Ended(exit_code=1, files=(1000, 1024)), Ended(exit_code=1, files=(100, 1024))
    assert finding_of(near).evidence["open_files"] == 1000
    assert "open_files" not in finding_of(far).evidence


def test_the_memory_of_each_process_is_told_the_largest_first() -> None:
    rows = trend({"a": [(0.0, 1e6), (2.0, 5e6)], "b": [(0.0, 9e6), (2.0, 8e6)], "c": []})
    assert [(row["process"], row["first"], row["largest"], row["last"]) for row in rows] == [
        *(("b", 9_000_000, 9_000_000, 8_000_000), ("a", 1_000_000, 5_000_000, 5_000_000))
    ]


@every_case(
    ("error", "because"),
    [
        ("Trying to backward through the graph a second time", "backward() ran again on a freed graph"),
        ("one of the variables needed for gradient computation has been modified by an inplace operation", "changed in place"),
        ("mat1 and mat2 must have the same dtype, but got Double and Float", "different dtypes"),
        ("mat1 and mat2 shapes cannot be multiplied (8x3 and 2x1)", "wrong number of inputs"),
    ],
)
def test_an_error_whose_text_is_known_has_the_cause_that_the_text_names_and_no_other(error: str, because: str) -> None:
    finding = finding_of(died(1, f"Traceback (most recent call last):\nRuntimeError: {error}\n"))
    (ranked,) = [one for one in rank([finding], Curves("run", ())) if one.stated]
    assert because in ranked.cause.because and ranked.stated == "likely" and ranked.fixes
    assert diagnose([finding]).causes == (ranked.cause.code,)
