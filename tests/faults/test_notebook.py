"""A run in a real Jupyter kernel: curves under the cell, cells that are executed again, and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import environment

PYTHON = os.environ.get("HOLDFAST_TRACKERS_PYTHON", sys.executable)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.executable == PYTHON and any(find_spec(name) is None for name in ("ipykernel", "nbclient")),
        reason="no Jupyter kernel here: pip install ipykernel nbclient",
    ),
]
PLOT = "class=&quot;holdfast-plot&quot;"
BUILD = """
import torch, holdfast
def build():
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)
def train(steps):
    for _ in range(steps):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
kept = []
"""
WATCH = """
model, optimizer = build()
run = holdfast.watch(model, optimizer)
kept.append((run, model, optimizer))
run
"""
CELLS = [
    *(BUILD, WATCH, "train(300)", "run", WATCH, "print([one.closed for one, *_ in kept])"),
    "train(10**9)",
    """
model, optimizer = build()
run = holdfast.watch(model, optimizer, name=kept[-1][0].name)
restored = run.restore(kept[-1][0].folder)
print(restored.step, torch.equal(model.weight, kept[-1][1].weight), kept[-1][0].closed)
""",
    "train(20); run.close(); import time; time.sleep(0.1)",
    "run",
]
EXECUTE = """
import json, os, signal, sys, threading, time, nbformat
from pathlib import Path
from nbclient import NotebookClient
from holdfast.signals.pulse import read_pulse
from holdfast.signals.run_folder import RunFolder
cells = [nbformat.v4.new_code_cell(text) for text in json.load(sys.stdin)]
book = nbformat.v4.new_notebook(cells=cells)
client = NotebookClient(book, timeout=600, kernel_name="python3", allow_errors=True)

def interrupt():
    run = RunFolder.open(Path("runs/latest"))
    while not run.recordings() or (pulse := read_pulse(run.recordings()[0])) is None or pulse.steps < 50:
        time.sleep(0.05)
    os.kill(run.info()["pid"], signal.SIGINT)  # as the stop button does

with client.setup_kernel():
    for number, cell in enumerate(cells):
        if "10**9" in cell.source:
            threading.Thread(target=interrupt, daemon=True).start()
        client.execute_cell(cell, number)
print(json.dumps([cell.outputs for cell in cells]))
"""


def text_of(outputs: list[dict[str, Any]]) -> str:
    return "".join(one.get("text", "") for one in outputs)


def html_of(outputs: list[dict[str, Any]]) -> str:
    return "".join(one["data"].get("text/html", "") for one in outputs if "data" in one)


def test_a_run_in_a_notebook_is_drawn_replaced_interrupted_and_resumed(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, "-c", EXECUTE],
        input=json.dumps(CELLS),
        cwd=tmp_path,
        env=environment(tmp_path, JUPYTER_PLATFORM_DIRS="1"),
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout.splitlines()[-1])
    errors = [one["evalue"] or one["ename"] for cell in outputs for one in cell if one["output_type"] == "error"]
    assert errors == ["KeyboardInterrupt"], errors
    drawn = html_of(outputs[3])
    assert "<iframe srcdoc=" in drawn and PLOT in drawn and "class=&quot;badge good&quot;&gt;healthy" in drawn
    steps = re.search(r"(\d+) steps", drawn)
    assert steps is not None and int(steps[1]) in (299, 300), "the last row may be on its way"
    assert PLOT in html_of(outputs[1]), "the display of the first cell was not brought up to date"
    assert text_of(outputs[5]) == "[True, False]\n", "a cell that is executed again closes its old run"
    assert "saved " in text_of(outputs[6])
    step, same, closed = text_of(outputs[7]).split()
    assert int(step) >= 50 and same == "True" and closed == "False"
    assert PLOT in html_of(outputs[9])
