"""/metrics in Prometheus' text format, which a real Prometheus reads in the slow test, and the same by OTLP."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import http.server
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import wait_until
from small_server import make_run, own_token

from holdfast.errors import UsageError
from holdfast.signals.run_folder import RunFolder
from holdfast.web.metrics import METRICS, _labels
from holdfast.web.start import Settings, serving

from .conftest import page_of, request

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana-dashboard.json"


@pytest.fixture
def live_run(tmp_path: Path) -> RunFolder:
    """A run that ended a moment ago."""
    run = make_run(tmp_path, 'od"d\\name', host="h", ended=time.time(), exit_code=0)
    run.journal.write("finding", code="loss-spike", severity="warning", step=5, rank=0, evidence={"loss": 9.0})
    return run


@contextlib.contextmanager
def receiver(failing: int = 0) -> Iterator[tuple[int, list[tuple[str, bytes]]]]:
    """An OTLP/HTTP receiver: what was posted to it. The first `failing` posts get a 503."""
    bodies: list[tuple[str, bytes]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append((self.path, gzip.decompress(content) if self.headers.get("Content-Encoding") == "gzip" else content))
            self.send_response(503 if len(bodies) <= failing else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1], bodies
        finally:
            server.shutdown()


def test_every_rank_has_its_figures_and_findings_are_counted(live_run: RunFolder) -> None:
    with page_of(live_run) as server:
        answer = request(server, "/metrics")
    lines = answer.content.decode().splitlines()
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples = dict(line.rsplit(" ", 1) for line in lines if line[0] != "#")
    name = r"od\"d\\name"
    assert samples[f'holdfast_step{{run="{name}",host="h",rank="1"}}'] == "99.0"
    assert samples[f'holdfast_findings_total{{run="{name}",host="h",code="loss-spike",severity="warning"}}'] == "1"
    assert samples[f'holdfast_up{{run="{name}",host="h"}}'] == "0.0"
    kinds = dict(line.split()[2:] for line in lines if line.startswith("# TYPE"))
    assert kinds["holdfast_findings_total"] == "counter" and kinds["holdfast_loss"] == "gauge"
    assert len({line.split("{")[0] for line in lines if line[0] != "#"}) == len(kinds)


def test_a_run_that_ended_long_ago_is_not_told_any_more(run: RunFolder) -> None:
    with page_of(run) as server:
        assert b"holdfast_up" not in request(server, "/metrics").content


def test_labels_are_escaped() -> None:
    assert _labels({"a": 'b"\\\n'}) == r'a="b\"\\\n"'


def test_the_dashboard_asks_only_for_metrics_that_there_are() -> None:
    asked = set(re.findall(r"holdfast_\w+", DASHBOARD.read_text(encoding="utf-8")))
    assert asked and asked <= set(METRICS)


def labels_of(point: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in point.attributes}


def test_a_collector_gets_the_same_numbers_by_otlp_and_is_tried_again_when_it_fails(live_run: RunFolder) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp", reason="needs OpenTelemetry: pip install 'holdfast[otlp]'")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    told: list[str] = []
    with receiver(failing=1) as (port, bodies):
        settings = Settings(listen="127.0.0.1:0", otlp=f"http://127.0.0.1:{port}")
        with serving(settings, lambda: [live_run], say=told.append):
            pass  # the last export comes at the end
        assert [path for path, _ in bodies] and {path for path, _ in bodies} == {"/v1/metrics"}
        message = ExportMetricsServiceRequest.FromString(bodies[-1][1])
        found = {one.name: one for one in message.resource_metrics[0].scope_metrics[0].metrics}
        steps = [(labels_of(point)["rank"], point.as_double) for point in found["holdfast.step"].gauge.data_points]
        assert steps == [("0", 99.0), ("1", 99.0)]
        findings = found["holdfast.findings"].sum
        assert findings.is_monotonic and labels_of(findings.data_points[0])["code"] == "loss-spike"
        assert "holdfast" in str(message.resource_metrics[0].resource)
    gone = Settings(listen="127.0.0.1:0", otlp=f"http://127.0.0.1:{port}")
    with serving(gone, lambda: [live_run], say=told.append):
        pass
    assert told == [f"OTLP: http://127.0.0.1:{port} does not take the metrics; trying again"]


def test_where_otlp_cannot_work_one_line_says_what_to_do(live_run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Settings(listen="127.0.0.1:0", otlp="collector")
    with pytest.raises(UsageError, match="is not the address of a collector"), serving(collector, lambda: [live_run]):
        pass
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(UsageError) as caught, serving(Settings(listen="127.0.0.1:0", otlp="http://h:4318"), lambda: [live_run]):
        pass
    assert caught.value.fix == "pip install 'holdfast[otlp]'"


@pytest.mark.slow
def test_a_real_prometheus_scrapes_it(live_run: RunFolder, tmp_path: Path) -> None:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("needs Prometheus: apt-get install prometheus")
    with page_of(live_run) as server:
        (tmp_path / "token").write_text(own_token(server))
        job = {"job_name": "holdfast", "scrape_interval": "1s", "authorization": {"credentials_file": str(tmp_path / "token")},
               "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}  # fmt: skip
        (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [job]}))
        words = [prometheus, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen([*words, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL)

        def value(metric: str) -> list[Any]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={metric}", timeout=5) as answer:
                    return list(json.load(answer)["data"]["result"])
            except (OSError, http.client.HTTPException):  # it is not up yet
                return []

        try:
            wait_until(lambda: bool(value("holdfast_step")))
            steps = value("holdfast_step")
            assert {one["metric"]["rank"]: one["value"][1] for one in steps} == {"0": "99", "1": "99"}
            assert steps[0]["metric"]["run"] == live_run.name
            assert value("holdfast_findings_total")[0]["metric"]["code"] == "loss-spike"
            assert value("up")[0]["value"][1] == "1"
        finally:
            process.terminate()
            process.wait(60)
