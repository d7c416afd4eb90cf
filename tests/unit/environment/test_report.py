"""How checks are asked, what is made of their answers, and that nothing secret leaves in a report."""

from __future__ import annotations

import random
import string
import threading
import time

from every_case import every_case

from holdfast.environment import check
from holdfast.environment.check import NOTE, OK, PROBLEM, WARNING, Check, Fix, Verdict, together
from holdfast.environment.checks import BY_NAME, CHECKS
from holdfast.environment.examine import Answer, ask, examine
from holdfast.environment.machine import Machine
from holdfast.environment.masking import mask, secret
from holdfast.environment.report import as_rows, failed_checks, text_report


def saying(name: str, verdict: Verdict, *, heavy: bool = False, after: float = 0.0, seconds: float = 5.0) -> Check:
    def answer(_: Machine) -> Verdict:
        time.sleep(after)
        return verdict

    return Check(name=name, asks=name, ask=answer, heavy=heavy, seconds=seconds)


def test_names_of_checks_are_unique_and_each_says_what_it_asks() -> None:
    assert len(BY_NAME) == len(CHECKS) and all(one.asks and len(one.name) <= 14 for one in CHECKS)


def test_a_check_that_hangs_is_left_behind_and_the_others_still_answer() -> None:
    checks = [saying("slow", check.ok("never said"), after=30.0, seconds=0.2), saying("next", check.ok("fine"))]
    first, second = examine(Machine(), checks)
    assert first.verdict.level == PROBLEM and "no answer in 0 s" in first.verdict.message
    assert second.verdict.message == "fine"


def test_a_check_that_fails_itself_is_told_and_is_not_the_machines_problem() -> None:
    def broken(_: Machine) -> Verdict:
        raise ValueError("not\nfound")

    answer = ask(Machine(), Check(name="broken", asks="", ask=broken))
    assert answer.verdict.level == WARNING and "ValueError: not found" in answer.verdict.message


def test_answers_come_in_the_order_of_the_checks_whoever_is_ready_first() -> None:
    checks = [
        saying("a", check.ok("a"), heavy=True, after=0.3),
        saying("b", check.ok("b")),
        saying("c", check.ok("c"), heavy=True),
    ]
    assert [one.verdict.message for one in examine(Machine(), checks)] == ["a", "b", "c"]


def test_a_check_that_waits_holds_no_other_up() -> None:
    asked = threading.Event()

    def wait(_: Machine) -> Verdict:
        return check.ok("in time" if asked.wait(10.0) else "the other one was held up")

    def next_one(_: Machine) -> Verdict:
        asked.set()
        return check.ok("asked")

    checks = [Check(name="waits", asks="", ask=wait, waits=True, seconds=20.0), Check(name="next", asks="", ask=next_one)]
    assert [one.verdict.message for one in examine(Machine(), checks)] == ["in time", "asked"]


def test_the_clock_and_the_network_hold_no_check_up() -> None:
    assert {one.name for one in CHECKS if one.waits} == {"clock", "mlflow", "wandb"}


def test_several_answers_of_one_check_are_as_bad_as_the_worst_and_keep_all_fixes() -> None:
    both = together([check.ok("fine", a=1), check.warning("bad", Fix("x")), check.problem("worse", Fix("y"), b=2)])
    assert both.level == PROBLEM and both.message == "worse; bad" and both.evidence == {"a": 1, "b": 2}
    assert [fix.text for fix in both.fixes] == ["y", "x"]
    assert together([check.ok("fine"), check.note("look")]).message == "look"


def test_problems_are_mended_before_warnings_and_notes_not_at_all() -> None:
    verdicts = [check.warning("w"), check.note("n"), check.problem("p"), check.ok("o")]
    answers = [Answer(saying(one.message, one), one, 0.1) for one in verdicts]
    assert [one.verdict.message for one in failed_checks(answers)] == ["p", "w"]
    assert [row["verdict"] for row in as_rows(answers)] == [WARNING, NOTE, PROBLEM, OK]


SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz",
    "MLFLOW_TRACKING_PASSWORD": "correct horse battery",
    "MLFLOW_TRACKING_URI": "https://anna:hunter22@tracker.example/path?token=abcdef99",
}
PLANTED = (
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz",
    "ghp_0123456789abcdefghijABCDEFGHIJ456789",
    "github_pat_11ABCDEFG0123456789abcdef",
    "sk-proj-abcdefghijklmnop1234",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlc2ln",
    "0123456789abcdef0123456789abcdef01234567",
    "anna.example@university.edu",
)


@every_case("word", PLANTED)
@every_case("around", ["{}", "key: {} ", "error 'token={}' refused", "https://me:{}@host/x", "python train.py --token {}"])
def test_secrets_are_taken_out_wherever_they_stand(word: str, around: str) -> None:
    assert word not in mask(around.format(word), {}, {})


def test_users_homes_and_machines_become_nameless_and_common_words_stay() -> None:
    text = "/home/annab/data /Users/annab/x by annab on gpu17: see /homes/annabel and torch"
    masked = mask(text, {}, {"annab": "<user>", "gpu17": "<host>"})
    assert masked == "/home/<user>/data /Users/<user>/x by <user> on <host>: see /homes/annabel and torch"


@every_case(
    "text",
    [
        "torch 2.13.0+cpu (CUDA 12.8), driver 580.65.06, sm_90, 139 GB of 140 GB",
        "/work/runs/first/checkpoints/step-4200 is 1.2 MB short",
        "export CUDA_VISIBLE_DEVICES=0,1",
        "process 4711 (python train.py --lr 0.1)",
        "pip install 'torchvision==0.21.*'",
    ],
)
def test_what_is_needed_to_help_is_not_masked(text: str) -> None:
    assert mask(text, {}, {}) == text


def test_a_report_of_an_environment_full_of_secrets_shows_none_of_them() -> None:
    verdict = check.problem(
        f"refused {SECRETS['HF_TOKEN']}",
        Fix("x", (f"export HF_TOKEN={SECRETS['HF_TOKEN']}",)),
        uri=SECRETS["MLFLOW_TRACKING_URI"],
    )
    text = text_report([Answer(saying("mlflow", verdict), verdict, 0.1)], {**SECRETS, "NCCL_DEBUG": "INFO"})
    for value in (*list(SECRETS.values())[:3], "hunter22", "abcdef99"):
        assert value not in text
    assert "NCCL_DEBUG=INFO" in text and "problem  mlflow" in text and "tracker.example" in text


@every_case("seed", range(20))
def test_any_value_of_a_secret_variable_is_hidden_in_any_text(seed: int) -> None:
    chosen = random.Random(seed)
    value = "".join(chosen.choices(string.ascii_letters + string.digits + "+/=._-", k=chosen.randint(6, 60)))
    name = chosen.choice(["API_KEY", "MY_TOKEN", "DB_PASSWORD", "aws_secret_access", "GITHUB_AUTH"])
    assert secret(name) and value not in mask(f"{value} then x={value}, '{value}'", {name: value}, {})
