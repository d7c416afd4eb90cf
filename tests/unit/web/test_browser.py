"""The page in a real browser: Debian's Chromium, driven by Playwright. Nothing waits for time, only for what the page shows."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from holdfast_run import wait_until
from small_server import own_token

from holdfast.inside.observers.batches import DrawnBatch, save_batches
from holdfast.probe.changing import change
from holdfast.probe.serve.server import Server
from holdfast.probe.target import registered_runs
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.web.start import Settings, serving

from .conftest import make_steps, origin, page_of

pytestmark = pytest.mark.slow
LATER = "step => Number(document.querySelector('.facts dd').textContent.replaceAll(',', '')) > step"
PICTURES = Path(__file__).parents[3] / "docs" / "pictures"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of 1280 pixels; an error of a script or a refusal by the content policy fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    made, wrong = context.new_page(), []
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("console", lambda message: wrong.append(message.text) if "Content Security Policy" in message.text else None)
    yield made
    context.close()
    assert not wrong


def open_page(page: Any, server: Server, where: str = "") -> None:
    """The link that `holdfast ui` prints, then a part of the page."""
    page.goto(f"{origin(server)}/#token={own_token(server)}")
    page.wait_for_selector("tr[data-id], .empty")
    if where:
        page.evaluate("where => { location.hash = where }", where)


def points(page: Any) -> int:
    """How many steps the head of the page shows."""
    return int(page.inner_text(".facts div:first-child dd").replace(",", ""))


def test_a_live_curve_moves_a_nan_becomes_a_mark_and_an_action_is_confirmed_and_journalled(page: Any, live: RunFolder) -> None:
    folder = live.path.parent.parent
    with serving(Settings(listen="127.0.0.1:0", allow_actions=True), registered_runs) as server:
        open_page(page, server, "#/run/watched")
        assert "token" not in page.url and own_token(server) not in page.content()
        page.wait_for_selector(".plot.large canvas")
        before = points(page)
        drawn = page.locator(".plot.large canvas").screenshot()
        page.wait_for_function(LATER, arg=before + 20)
        assert page.locator(".plot.large canvas").screenshot() != drawn
        (folder / "nan").touch()
        page.wait_for_selector(".strip .event.bad")
        (folder / "nan").unlink()
        page.locator(".strip .event.bad").first.click()
        page.wait_for_selector("dialog[open] .cause, dialog[open] .done")
        assert "non-finite" in page.inner_text("dialog") and "holdfast explain" in page.inner_text("dialog")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Set…").click()
        page.fill("#setting", "lr=0.0123")
        assert page.inner_text("dialog code.command") == "holdfast set watched lr=0.0123"
        assert not [row for row in live.journal if row["kind"] == "change"]  # nothing happens before it is confirmed
        page.get_by_role("button", name="Do it").click()
        page.wait_for_selector("dialog .outcome .ok")
        (change,) = (row for row in live.journal if row["kind"] == "change")
        assert change["who"] == "local from 127.0.0.1 (page)" and "0.0123" in json.dumps(change)
        page.keyboard.press("Escape")
        page.locator(".strip .event:has-text('0.0123')").click()
        page.get_by_role("button", name="Undo it…").click()
        assert page.inner_text("dialog code.command") == f"holdfast undo watched {change['number']}"
        page.get_by_role("button", name="Do it").click()
        page.wait_for_selector("dialog .outcome .ok")
        assert [row["do"] for row in live.journal if row["kind"] == "change"] == ["set", "undo"]


def test_a_training_is_saved_paused_and_continued_from_the_page(page: Any, live: RunFolder) -> None:
    with serving(Settings(listen="127.0.0.1:0", allow_actions=True), registered_runs) as server:
        open_page(page, server, "#/run/watched")
        for button in ("Save", "Pause", "Continue"):
            page.get_by_role("button", name=button, exact=True).click()
            assert page.inner_text("dialog code.command") == f"holdfast {button.lower()} watched"
            assert button.lower() not in [row.get("do") for row in live.journal]  # nothing happens before it is confirmed
            page.get_by_role("button", name="Do it").click()
            page.wait_for_selector("dialog .outcome .ok")
            page.keyboard.press("Escape")
        page.wait_for_function(LATER, arg=points(page))
    done = [(row["do"], row["who"]) for row in live.journal if row["kind"] == "change"]
    assert done == [(verb, "local from 127.0.0.1 (page)") for verb in ("save", "pause", "continue")]


def test_a_training_is_rolled_back_from_the_page_to_a_checkpoint_of_the_list(page: Any, live: RunFolder) -> None:
    saved = change(live, {"do": "save", "path": None})[0].answer
    with serving(Settings(listen="127.0.0.1:0", allow_actions=True), registered_runs) as server:
        open_page(page, server, "#/run/watched/checkpoints")
        page.wait_for_selector(".plot.large canvas")
        page.wait_for_function(LATER, arg=saved["step"] + 20)
        page.locator(".pane.checkpoints").get_by_role("button", name="Roll back…").click()
        name = Path(saved["path"]).name
        assert page.inner_text("dialog code.command") == f"holdfast rollback watched --to {name}"
        assert not [row for row in live.journal if row.get("do") == "rollback"]  # nothing happens before it is confirmed
        page.get_by_role("button", name="Do it").click()
        page.wait_for_selector("dialog .outcome .ok")
        assert f"restored the state of step {saved['step']}" in page.inner_text("dialog .outcome")
        (row,) = (row for row in live.journal if row.get("do") == "rollback")
        assert row["who"] == "local from 127.0.0.1 (page)" and row["to"] == saved["step"]
        page.wait_for_selector(f".strip .event:has-text('rolled back to step {saved['step']}')")
        page.keyboard.press("Escape")
        page.keyboard.press("6")
        page.get_by_role("button", name="Take the stacks now").click()  # one click is `holdfast backtrace`
        page.wait_for_selector(".pane.stacks .stack li:has-text('trains_while_watched.py')")


def test_an_open_page_continues_when_its_server_is_restarted(page: Any, live: RunFolder) -> None:
    with serving(Settings(listen="127.0.0.1:0"), registered_runs) as server:
        port = server.port
        open_page(page, server, "#/run/watched")
        page.wait_for_selector(".plot.large canvas")
    page.wait_for_selector(".link.off")
    with serving(Settings(listen=f"127.0.0.1:{port}"), registered_runs):
        page.wait_for_selector(".link.on")
        before = points(page)
        page.wait_for_function(LATER, arg=before)


def test_fifty_runs_are_filtered_sorted_selected_by_keyboard_and_compared(page: Any, tmp_path: Path) -> None:
    runs = [make_steps(tmp_path, f"sweep-{number:02}", np.linspace(2, 1 / (number + 1), 300)) for number in range(50)]
    with page_of(*runs) as server:
        open_page(page, server)
        page.wait_for_function("() => document.querySelectorAll('tr[data-id]').length === 50")
        page.get_by_role("button", name="Loss").click()
        assert page.locator("tr[data-id]").first.get_attribute("data-id") == "sweep-49"
        page.keyboard.press("/")
        page.keyboard.type("sweep-1")
        page.wait_for_function("() => document.querySelectorAll('tr[data-id]').length === 10")
        page.keyboard.press("Escape")
        for key in ("j", "x", "j", "x", "c"):
            page.keyboard.press(key)
        page.wait_for_selector(".verdicts table")
        assert "sweep-19" in page.inner_text(".verdicts") and page.locator(".plot.large canvas").count() == 1
        assert "%2F" not in page.url and page.url.count("sweep-1") == 2


def test_every_tab_shows_something(page: Any, run: RunFolder) -> None:
    with page_of(run) as server:
        open_page(page, server, "#/run/first")
        page.wait_for_selector(".plot.large canvas")
        tabs = ("diagnosis", "journal", "parameters", "modules", "ranks", "stacks", "checkpoints", "data", "environment")
        for number, name in enumerate(tabs, 1):
            page.keyboard.press(str(number))
            page.wait_for_selector(f".pane.{name} > :not(p.soft:only-child)")
            assert page.inner_text(".tabs [aria-current]").lower() == name and page.locator(".pane > .problem").count() == 0


def drag(page: Any, place: Any) -> None:
    """Zoom into a part of a plot."""
    box = place.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 90)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 90, steps=5)
    page.mouse.up()


def test_a_zoom_is_that_of_all_plots_along_steps_epochs_and_time_and_a_log_scale_is_marked(page: Any, tmp_path: Path) -> None:
    runs = story(tmp_path)
    with page_of(*runs) as server:
        open_page(page, server, "#/run/base")
        loss, norm = (page.locator(f".plot:has(figcaption b:text-is('{name}'))") for name in ("Loss", "Gradient norm"))
        loss.locator("canvas").wait_for()
        assert loss.locator("button.scale").inner_text() == "linear"
        page.keyboard.press("l")
        loss.locator("button.scale.on:has-text('log scale')").wait_for()
        for key, words in (("s", "step 7"), ("e", "epoch 7."), ("t", ":")):  # made from step 600 to 900 of 1,200
            with page.expect_response("**/api/curves?**"):
                page.keyboard.press(key)
            page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
            whole = norm.locator("canvas").screenshot()
            drag(page, loss)
            page.wait_for_selector("button:has-text('whole run'):visible")
            wait_until(lambda whole=whole: norm.locator("canvas").screenshot() != whole)
            box = loss.locator(".u-over").bounding_box()
            page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 50)
            page.wait_for_function("words => document.querySelector('.place').textContent.includes(words)", arg=words)
            page.keyboard.press("0")
            page.wait_for_selector("button:has-text('whole run')", state="hidden")
        page.keyboard.press("s")
        page.locator("input[type=range]").fill("4")
        page.wait_for_selector("text=mean of 50 steps")


def test_heat_maps_show_layers_and_ranks_by_step(page: Any, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "wide", started=1.0)
    for rank in range(4):
        recorder = Recorder.start(run, rank)

        def add(table: str, recorder: Recorder = recorder, **row: Any) -> None:
            recorder.table(table).append([row.get(one.name, one.kind.missing) for one in TABLES[table].columns])

        for step in range(240):
            add("steps", step=step, loss=1.0, time=float(step), step_seconds=0.9 if rank == 2 else 0.1)
            for name in ("stem.weight", "head.weight") if step % 2 == 0 and rank == 0 else ():
                norm = float("nan") if (name, step) == ("head.weight", 100) else 1.0 + step
                add("parameters", step=step, name=recorder.strings.code(name), grad_norm=norm, non_finite=int(norm != norm))
        recorder.close()
    with page_of(run) as server:
        open_page(page, server, "#/run/wide/parameters")
        page.wait_for_selector(".heat canvas")
        assert page.locator(".heat .names li").all_inner_texts() == ["stem.weight", "head.weight"]
        assert page.locator(".heat .names li.bad").inner_text() == "head.weight" and "■ not finite" in page.inner_text(".pane")
        page.keyboard.press("5")
        page.wait_for_selector(".pane.ranks .heat canvas")
        assert page.locator(".heat .names li").all_inner_texts() == [f"rank {rank}" for rank in range(4)]
        box = page.locator(".heat canvas").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.62)
        page.wait_for_function("() => document.querySelector('.told').textContent.endsWith('0.9 s')")
        assert page.inner_text(".pane .told").startswith("rank 2, about step 1")


def test_the_data_tab_shows_samples_of_the_batch_that_was_bad(page: Any, tmp_path: Path) -> None:
    run = make_steps(tmp_path, "pictures", [1.0, float("nan"), 1.0])
    info = json.loads((run.path / "run.json").read_text()) | {"settings": {"data": "my cells/data.yaml"}}
    (run.path / "run.json").write_text(json.dumps(info))
    images = torch.rand(20, 3, 64, 64)
    images[7, :, 20:40] = float("nan")
    drawn = DrawnBatch((images, torch.arange(20) % 3), list(range(100, 120)), list(range(100, 120)), 0, dataset="Cells")
    save_batches(run.path / "rank-0" / "batches", 1, [drawn], state={}, run_later=lambda job: job())
    with page_of(run) as server:
        open_page(page, server, "#/run/pictures/data")
        page.wait_for_selector(".pane.data .sample.bad img")
        assert page.inner_text(".sample.bad").startswith("■ 107") and page.locator(".sample img").count() == 12
        page.wait_for_function("() => [...document.querySelectorAll('.sample img')].every((one) => one.naturalWidth === 64)")
        shown = page.inner_text(".pane.data")
        assert "bad samples: 107" in shown and "holdfast replay pictures --step 1" in shown
        assert "holdfast visualize 'my cells/data.yaml'" in shown


def test_without_the_token_the_page_asks_for_it_and_shows_nothing(page: Any, run: RunFolder) -> None:
    with page_of(run) as server:
        page.goto(f"{origin(server)}/#/run/first")
        page.wait_for_selector("#login:not([hidden])")
        assert "head.weight" not in page.content() and page.locator("tr[data-id]").count() == 0
        page.fill("#token", "hf_this_is_not_the_token")
        page.keyboard.press("Enter")
        page.wait_for_selector("#login-problem:not(:empty)")
        page.fill("#token", own_token(server))
        page.keyboard.press("Enter")
        page.wait_for_selector("tr[data-id], .plot.large canvas")


def test_an_exported_page_needs_no_server_and_shows_the_same(browser: Any, tmp_path: Path, run: RunFolder) -> None:
    from holdfast.web.export import exported

    (tmp_path / "first.html").write_text(exported(run))
    context, wrong = browser.new_context(offline=True), []
    page = context.new_page()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((tmp_path / "first.html").as_uri())
    page.wait_for_selector(".plot.large canvas")
    page.wait_for_selector(".pane .episode")
    assert points(page) == 99 and "non-finite loss" in page.inner_text(".pane")
    page.get_by_role("button", name="time").click()
    page.keyboard.press("5")
    page.wait_for_selector(".pane.ranks canvas")
    context.close()
    assert not wrong


def test_reports_and_notebooks_draw_the_same_plots_without_a_server(browser: Any, tmp_path: Path, run: RunFolder) -> None:
    from holdfast.diagnosis.of_run import check_up_run
    from holdfast.diagnosis.page import frame, page
    from holdfast.train.report import MetricsTable, write_report

    table = MetricsTable(tmp_path / "metrics.csv")
    for epoch in range(1, 9):
        table.add({"epoch": epoch, "step": 10 * epoch, "train_loss": 5.0**-epoch, "map": epoch / 10, "lr": 0.1})
    write_report(tmp_path, {}, table, {"map": 0.8}, {})
    (tmp_path / "diagnose.html").write_text(page([check_up_run(run)]))
    (tmp_path / "notebook.html").write_text(f"<!doctype html><h1>a cell</h1>{frame(run)}")
    context, wrong = browser.new_context(offline=True, viewport={"width": 1280, "height": 900}), []
    shown = context.new_page()
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    for name, place, plots in (("report", shown, 3), ("diagnose", shown, 1), ("notebook", shown.frame_locator("iframe"), 1)):
        shown.goto((tmp_path / f"{name}.html").as_uri())
        place.locator(".plot canvas").first.wait_for()
        assert place.locator(".plot canvas").count() == plots, name
    shown.goto((tmp_path / "report.html").as_uri())
    loss, metric = shown.locator(".plot").nth(0), shown.locator(".plot").nth(1)
    assert loss.locator("button.scale").inner_text() == "log scale" and metric.locator("button.scale").inner_text() == "linear"
    before = metric.locator("canvas").screenshot()
    drag(shown, loss)
    wait_until(lambda: metric.locator("canvas").screenshot() != before)  # the zoom is that of all plots
    loss.locator(".u-over").dblclick()
    context.close()
    assert not wrong


def story(folder: Path) -> list[RunFolder]:
    """Four finished runs for the pictures; one of them had a bad batch, which was skipped."""
    runs = []
    for number, (name, slope, noise) in enumerate(
        [("base", 1.0, 0.08), ("wide", 1.4, 0.07), ("no-warmup", 0.6, 0.15), ("small-lr", 0.4, 0.06)]
    ):
        chance, steps = np.random.default_rng(number), np.arange(1200)
        losses = 2.2 / (1 + slope * steps / 90) * np.exp(chance.normal(0, noise, len(steps))) + 0.03
        norms = 0.3 + 2.0 / (1 + steps / 200) * np.exp(chance.normal(0, 0.25, len(steps)))
        rates = 0.002 * np.minimum(1, steps / 60) * (1 + np.cos(np.pi * steps / 1200)) / 2
        waits = np.abs(chance.normal(0.004, 0.002, len(steps)))
        if name == "base":
            losses[640], norms[640] = np.nan, np.nan
        found = [(step, metric, value) for step in range(100, 1200, 100) for metric, value in
                 (("loss", 2.4 / (1 + slope * step / 100) + 0.12), ("accuracy", 1 - 0.7 / (1 + slope * step / 60)))]  # fmt: skip
        memory = 2_400_000_000 + 40_000_000 * (steps // 300)
        runs.append(make_steps(folder, name, losses, found, grad_norm=norms, lr=rates, step_seconds=0.09 + waits,
                               data_seconds=waits, host_rss=memory.tolist()))  # fmt: skip
    journal = runs[0].journal
    batch = {"loss": float("nan"), "parameter": "head.weight", "input": "finite", "batch": {"bad_samples": [1203]}}
    journal.write("finding", code="non-finite-loss", severity="critical", step=640, rank=0, evidence=batch)
    journal.write("action", action="skip-batch", state="done", step=640, rank=0, because="non-finite-loss", settings={})
    for step in (300, 600, 900):
        journal.write("checkpoint", event="saved", path=f"runs/base/checkpoints/step-{step:06}", step=step, rank=0)
    return runs


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_its_window_and_its_pictures_are_those_of_the_docs(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    """With HOLDFAST_PICTURES=1 the pictures are written into docs."""
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    context.set_default_timeout(60_000)
    page = context.new_page()
    shots: dict[str, bytes] = {}
    with page_of(*story(tmp_path)) as server:
        open_page(page, server)
        page.wait_for_function("() => document.querySelectorAll('tr[data-id]').length === 4")
        box = page.locator("table.runs").bounding_box()
        shots["runs"] = page.screenshot(clip={"x": 0, "y": 0, "width": width, "height": min(800, box["y"] + box["height"] + 24)})
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        page.evaluate("() => { location.hash = '#/run/base' }")
        page.wait_for_selector(".plot.large canvas")
        page.wait_for_selector(".pane .episode")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        shots["run"] = page.screenshot(full_page=True)
    context.close()
    assert len(set(shots.values())) == 2
    if os.environ.get("HOLDFAST_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        for name, content in shots.items():
            (PICTURES / f"{name}-{scheme}-{width}.png").write_bytes(content)
