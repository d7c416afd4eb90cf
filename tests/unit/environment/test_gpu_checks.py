"""What `doctor` reports about driver, cards and torch, with stand-ins for NVIDIA's library and for torch at their edges."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from every_case import every_case

from holdfast.environment.check import NOTE, OK, PROBLEM, SKIPPED, WARNING
from holdfast.environment.checks import gpu_driver, gpu_others, gpu_visible, peer_access, torch_build
from holdfast.environment.machine import Machine
from holdfast.environment.nvidia import Card, Nvidia, cards_on_the_bus, read_nvidia
from holdfast.environment.platform import Platform
from holdfast.environment.torch_facts import TorchFacts

Cards = Callable[[str], None]
TorchIs = Callable[..., None]
H200 = "card 9 0 143771 500 0 0 NVIDIA H200\n"
OLD = "card 6 1 11264 300 0 0 NVIDIA GeForce GTX 1080 Ti\n"
BUILT = {"version": "2.9.0+cu128", "cuda": "12.8", "architectures": ["sm_70", "sm_80", "sm_90"], "threads": 2}


def test_a_machine_without_a_card_is_not_blamed_for_it() -> None:
    machine = Machine()
    assert gpu_driver.ask(machine).level == SKIPPED
    assert gpu_visible.ask(machine).level == SKIPPED and gpu_others.ask(machine).level == SKIPPED


def test_a_card_with_its_driver_is_named(cards: Cards) -> None:
    cards("driver 580.65.06\ncuda 13000\n" + H200)
    verdict = gpu_driver.ask(Machine())
    assert verdict.level == OK and "580.65.06" in verdict.message and "1 × NVIDIA H200" in verdict.message
    assert verdict.evidence["cards"] == ["NVIDIA H200, sm_90, 140 GiB"] and verdict.evidence["serves CUDA up to"] == "13.0"


@every_case(
    ("answers", "words", "command"),
    [
        ("init 18\n", "updated without a restart", "sudo reboot"),
        ("init 9\n", "not loaded", "sudo modprobe nvidia"),
        ("driver 580.65\n", "lists no GPU", "docker run --gpus all IMAGE"),
        ("card 9 0 143771 500 2 0 NVIDIA H200\n", "compute mode: prohibited", "sudo nvidia-smi -i 0 -c 0"),
    ],
)
def test_a_driver_that_cannot_compute_is_a_problem_with_its_command(cards: Cards, answers: str, words: str, command: str) -> None:
    cards(answers)
    verdict = gpu_driver.ask(Machine())
    assert verdict.level == PROBLEM and words in verdict.message
    assert command in [one for fix in verdict.fixes for one in fix.commands]


def test_a_card_that_is_held_down_by_heat_is_told_and_an_idle_one_is_not(cards: Cards) -> None:
    cards("card 9 0 143771 500 0 64 NVIDIA H200\n")  # hardware slowdown for heat
    hot = gpu_driver.ask(Machine())
    assert hot.level == WARNING and "throttled by heat" in hot.message
    cards("card 9 0 143771 500 0 1 NVIDIA H200\n")  # nothing to do
    assert gpu_driver.ask(Machine()).level == OK


def test_a_driver_that_hangs_is_given_up_on(cards: Cards) -> None:
    cards("hang 1\n" + H200)
    nvidia = read_nvidia(seconds=1.5)
    assert nvidia.error == "hang" and "did not answer" in nvidia.message
    assert gpu_driver.ask(Machine(nvidia=nvidia)).level == PROBLEM


def test_cards_are_counted_on_the_bus_and_network_cards_of_the_same_maker_are_not(tmp_path: Path) -> None:
    for name, vendor, kind in (("0", "0x10de", "0x030200"), ("1", "0x15b3", "0x020000"), ("2", "0x10de", "0x068000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert cards_on_the_bus(tmp_path) == 1


def test_a_card_without_its_library_is_a_problem_and_a_container_that_was_given_fewer_cards_is_not() -> None:
    alone, inside = Platform(), Platform(container=True)
    missing = Nvidia(error=12, message="not found", on_the_bus=1)
    assert gpu_driver.ask(Machine(nvidia=missing, platform=alone)).level == PROBLEM
    assert "docker run --gpus all IMAGE" in gpu_driver.ask(Machine(nvidia=missing, platform=inside)).fixes[0].commands
    fewer = Nvidia(cards=(Card(index=0, name="NVIDIA H200"),), on_the_bus=8)
    assert gpu_driver.ask(Machine(nvidia=fewer, platform=alone)).level == WARNING
    assert gpu_driver.ask(Machine(nvidia=fewer, platform=inside)).level == NOTE


@every_case(
    ("value", "level", "words"),
    [
        ("", PROBLEM, "hides every GPU (it is empty)"),
        ("-1", PROBLEM, "hides every GPU"),
        ("5", PROBLEM, "hides every GPU"),
        ("0,7", PROBLEM, "only 1 of 2 GPUs are used"),
        ("0,0", PROBLEM, "listed twice"),
        ("1", NOTE, "shows 1 of 2 GPUs"),
        ("0,1", OK, "all 2 visible"),
        ("GPU-0000abc1", NOTE, "shows 1 of 2 GPUs"),
        ("GPU-ffff", PROBLEM, "hides every GPU"),
        (None, OK, "all 2 visible"),
    ],
)
def test_cards_that_are_hidden_from_programs_are_told(
    cards: Cards, monkeypatch: pytest.MonkeyPatch, value: str | None, level: str, words: str
) -> None:
    cards(H200 * 2)
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    verdict = gpu_visible.ask(Machine())
    assert verdict.level == level and words in verdict.message


def test_cards_of_two_kinds_have_two_numberings(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(H200 + OLD)
    assert gpu_visible.ask(Machine()).level == NOTE
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert gpu_visible.ask(Machine()).level == OK


def test_memory_that_another_process_holds_is_told_with_its_name(cards: Cards) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        cards(f"card 9 0 143771 60000 0 0 NVIDIA H200\nprocess 0 {other.pid} 59000\n")
        verdict = gpu_others.ask(Machine())
        other.kill()
    assert verdict.level == WARNING and f"python {other.pid} 57.6 GiB" in verdict.message.replace("python3 ", "python ")
    assert verdict.evidence["card 0 processes"][0]["pid"] == other.pid


def test_a_card_that_is_nearly_full_is_a_problem_and_memory_without_a_process_too(cards: Cards) -> None:
    cards("card 9 0 143771 140000 0 0 NVIDIA H200\n")
    verdict = gpu_others.ask(Machine())
    assert verdict.level == PROBLEM and "by no visible process" in verdict.message


def test_what_the_driver_itself_takes_of_an_idle_card_is_nobodys(cards: Cards) -> None:
    cards(H200)
    assert gpu_others.ask(Machine()).level == OK


def test_a_cpu_build_on_a_machine_with_a_card_is_a_problem(cards: Cards, real_torch: TorchFacts) -> None:
    cards("cuda 12040\n" + H200)
    machine = Machine(torch=real_torch)
    if machine.torch.cuda is not None:
        pytest.skip("this torch is no CPU build")
    verdict = torch_build.ask(machine)
    assert verdict.level == PROBLEM and "is a CPU build on a machine with a GPU" in verdict.message
    assert "CUDA 12.4 or older" in verdict.fixes[0].text and "torch" in verdict.fixes[0].commands[0]


def test_the_torch_of_this_machine_passes_without_cards(real_torch: TorchFacts) -> None:
    verdict = torch_build.ask(Machine(torch=real_torch))
    assert verdict.level == OK and "torch 2." in verdict.message


def test_a_driver_too_old_for_torch_names_both_versions(cards: Cards, torch_is: TorchIs) -> None:
    cards("driver 470.82\ncuda 11040\n" + H200)
    torch_is(**BUILT, why_not="The NVIDIA driver on your system is too old (found version 11040).")
    verdict = torch_build.ask(Machine())
    assert verdict.level == PROBLEM
    assert "driver 470.82 serves CUDA up to 11.4, torch 2.9.0+cu128 needs CUDA 12.8" in verdict.message


def test_a_card_that_torch_has_no_kernels_for_is_named_with_its_capability(cards: Cards, torch_is: TorchIs) -> None:
    cards(OLD)
    error = "CUDA error: no kernel image is available for execution on the device"
    torch_is(**BUILT, available=True, devices=[["NVIDIA GeForce GTX 1080 Ti", 6, 1]], broken={"cuda:0": error})
    verdict = torch_build.ask(Machine())
    assert verdict.level == PROBLEM and "has no kernels for NVIDIA GeForce GTX 1080 Ti (sm_61)" in verdict.message
    assert "sm_70 sm_80 sm_90" in verdict.message


def test_a_kernel_that_fails_for_another_reason_is_told_by_its_error(cards: Cards, torch_is: TorchIs) -> None:
    cards(H200)
    torch_is(**BUILT, available=True, devices=[["NVIDIA H200", 9, 0]], broken={"cuda:0": "CUDA error: uncorrectable ECC error"})
    verdict = torch_build.ask(Machine())
    assert verdict.level == PROBLEM and "uncorrectable ECC" in verdict.message


def test_a_card_on_which_a_kernel_ran_is_fine_whatever_the_versions_say(cards: Cards, torch_is: TorchIs) -> None:
    cards("cuda 12040\n" + H200)
    torch_is(**BUILT, available=True, devices=[["NVIDIA H200", 9, 0]])
    assert torch_build.ask(Machine()).level == NOTE  # an older driver of the same series works, with a remark
    cards("cuda 13000\n" + H200)
    assert torch_build.ask(Machine()).level == OK


def test_a_torch_that_finds_no_card_is_a_problem_and_leaves_hidden_cards_to_the_check_for_those(
    cards: Cards, torch_is: TorchIs, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(H200)
    torch_is(**BUILT, why_not="CUDA initialization: unknown error")
    verdict = torch_build.ask(Machine())
    assert verdict.level == PROBLEM and "finds no GPU: CUDA initialization: unknown error" in verdict.message
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert torch_build.ask(Machine()).level == PROBLEM
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert torch_build.ask(Machine()).level == NOTE


def test_a_torch_that_cannot_be_imported_is_told_with_its_error(torch_is: TorchIs) -> None:
    torch_is(import_error="libcudart.so.12: cannot open shared object file")
    verdict = torch_build.ask(Machine())
    assert verdict.level == PROBLEM and "libcudart.so.12" in verdict.message


@every_case(
    ("architectures", "capability", "runs"),
    [
        (("sm_80", "sm_90"), (9, 0), True),
        (("sm_80",), (8, 6), True),
        (("sm_86",), (8, 0), False),
        (("sm_80", "sm_90"), (12, 0), False),
        (("sm_90", "compute_90"), (12, 0), True),
        (("sm_90a",), (9, 0), True),
        (("sm_100a",), (10, 3), False),
        (("sm_120",), (12, 0), True),
    ],
)
def test_kernels_run_on_the_same_series_and_not_on_older_cards(
    architectures: tuple[str, ...], capability: tuple[int, int], runs: bool
) -> None:
    assert torch_build.runs_on(architectures, capability) == runs


def test_cards_that_cannot_reach_each_other_are_a_note_with_the_reason(cards: Cards, torch_is: TorchIs) -> None:
    torch_is(**BUILT, available=True, devices=[["NVIDIA H200", 9, 0]] * 2, peers=False)
    cards(H200 * 2 + "link 0 1 1\n")
    verdict = peer_access.ask(Machine())
    assert verdict.level == NOTE and "1 of 1 pairs" in verdict.message and "the chip set does not support it" in verdict.message
    torch_is(**BUILT, available=True, devices=[["NVIDIA H200", 9, 0]] * 2)
    cards(H200 * 2)
    assert peer_access.ask(Machine()).level == OK
