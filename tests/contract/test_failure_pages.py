"""Every failure has its page, in one shape, with the causes that the code knows; and what the pages name exists."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from holdfast.cli.app import app
from holdfast.diagnosis.causes import BY_CODE, CAUSES
from holdfast.diagnosis.describe import failure_pages
from holdfast.diagnosis.failures import CODES, ERRORS, causes_of, page
from holdfast.diagnosis.known_texts import KNOWN_TEXTS
from holdfast.probe.sql import query
from holdfast.probe.words import FINDINGS
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
SOURCE, DOCS = ROOT / "src" / "holdfast", ROOT / "docs" / "failures"
RAISE = ("detectors", "inside", "supervisor", "recovery")  # units whose code raises findings
NOT_YET = "No detector raises it yet"
OTHER_WORDS = {"nvidia-smi", "py-spy", "flash-attn", "compute-sanitizer"}  # with a hyphen, and neither a failure nor a cause
SHAPE = re.compile(
    r"# (?P<code>[a-z-]+): [^\n]+\n\n```text\n.+?\n```\n\n.*?"
    r"## What Holdfast looks at\n\n.+?\n\nSeverity: .+?\.\n\n## Causes\n\n- `.+?\n\n## Fixes\n\n.+",
    re.DOTALL,
)


def test_every_finding_has_a_page_and_no_page_is_left_over() -> None:
    assert set(CODES) == {*FINDINGS, *ERRORS} and len(set(CODES)) == len(CODES)
    assert {path.stem for path in (SOURCE / "diagnosis" / "failure_pages").iterdir()} == set(CODES)


def test_a_page_opens_with_what_the_user_sees_then_evidence_causes_and_fixes() -> None:
    for code in CODES:
        text = page(code).text
        shape = SHAPE.fullmatch(text)
        assert shape is not None and shape["code"] == code, code
        assert 25 <= len(text.splitlines()) <= 60 and max(map(len, text.splitlines())) <= 160, code


def test_a_page_has_every_cause_that_explains_it_and_names_only_what_exists() -> None:
    for code in CODES:
        text = page(code).text
        assert causes_of(code), f"{code}: a failure without any cause"
        for cause in CAUSES:
            assert (f"- `{cause.code}`: " in text) == (code in cause.seen_by), f"{code}: {cause.code}"
        named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", text))
        assert named <= {*CODES, *BY_CODE, *OTHER_WORDS}, code


def test_causes_explain_failures_that_have_a_page() -> None:
    for cause in CAUSES:
        assert cause.seen_by and set(cause.seen_by) <= set(CODES), cause.code


def test_a_page_says_whether_a_detector_raises_it() -> None:
    sources = {path: path.read_text(encoding="utf-8") for unit in RAISE for path in (SOURCE / unit).rglob("*.py")}
    for code in FINDINGS:
        raised = [path for path, text in sources.items() if f'"{code}"' in text or f"'{code}'" in text]
        says_not = NOT_YET in " ".join(page(code).text.split())
        if code in ("gpu-out-of-memory", "host-out-of-memory", "checkpoint-torn", "checkpoint-incompatible"):
            assert not says_not  # made of parts, or an answer of `holdfast checkpoints`
        else:
            assert says_not != bool(raised), f"the page of {code} is not up to date; it is in {raised[:2]}"


def test_the_pages_under_docs_are_what_make_docs_writes() -> None:
    pages = failure_pages()
    assert {path.name for path in DOCS.iterdir()} == set(pages), "run `make docs`"
    for name, text in pages.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"{name}: run `make docs`"


def everything_said() -> str:
    fixes = [text for cause in CAUSES for fix in cause.fixes for text in (fix.text, fix.command or "")]
    return "\n".join([*(page(code).text for code in CODES), *(known.fix for known in KNOWN_TEXTS), *fixes])


def test_verbs_that_are_named_exist() -> None:
    verbs = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    named = set(re.findall(r"holdfast ([a-z]+)\b(?= [A-Za-z\"'`-]|`|;|:|,|\.|$)", everything_said(), re.MULTILINE))
    assert named - verbs == set() and {"run", "query", "checkpoints"} <= named


def test_queries_that_are_named_are_answered(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "asked", pid=1, started=time.time(), command=["python", "train.py"])
    Recorder.start(run, 0).close()
    queries = re.findall(r'holdfast query(?: -t \{run\})? "(SELECT [^"]+)"', everything_said())
    assert len(queries) >= 10
    for one in queries:
        assert query(run, " ".join(one.split())).columns


def test_pages_travel_with_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    built = {path.stem for path in (tmp_path / "holdfast" / "diagnosis" / "failure_pages").glob("*.md")}
    assert built == set(CODES)
