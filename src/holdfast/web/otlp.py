"""The metrics pushed to an OpenTelemetry collector (OTLP over HTTP), by the official SDK, in a thread of the server's process.

The SDK's own environment variables count: OTEL_EXPORTER_OTLP_HEADERS, OTEL_METRIC_EXPORT_INTERVAL, OTEL_RESOURCE_ATTRIBUTES.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import UsageError
from holdfast.version import __version__
from holdfast.web import metrics
from holdfast.web.runs import Runs

_EVERY_SECONDS, _TIMEOUT = 10.0, 5
_FRESH_SECONDS = 1.0  # one look serves every metric of an export


@contextlib.contextmanager
def pushing(runs: Runs, endpoint: str, say: Callable[[str], None]) -> Iterator[None]:
    """Push what `/metrics` shows to a collector as long as the block lasts, and once more at its end."""
    address = _address(endpoint)
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.metrics import CallbackOptions, Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ImportError as error:
        problem = "OTLP export needs the OpenTelemetry SDK, which is not installed."
        raise UsageError(problem, fix="pip install 'holdfast[otlp]'") from error

    class Exporter(OTLPMetricExporter):
        """Says once that a collector does not take the metrics, and once that it takes them again."""

        fails = False

        def export(self, *args: Any, **named: Any) -> Any:
            result = super().export(*args, **named)
            if self.fails != (fails := result is not MetricExportResult.SUCCESS):
                self.fails = fails
                say(f"OTLP: {endpoint} {'does not take the metrics; trying again' if fails else 'takes the metrics again'}")
            return result

    latest = _Latest(runs)

    def observe(name: str, _: CallbackOptions) -> list[Any]:
        return [
            Observation(value, {key: str(label) for key, label in labels.items()}) for _, labels, value in latest.samples()[name]
        ]

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it would write tracebacks; `say` tells it in a line
    every = None if "OTEL_METRIC_EXPORT_INTERVAL" in os.environ else _EVERY_SECONDS * 1e3
    reader = PeriodicExportingMetricReader(Exporter(endpoint=address, timeout=_TIMEOUT), export_interval_millis=every)
    provider = MeterProvider([reader], resource=Resource.create({"service.name": "holdfast", "service.version": __version__}))
    meter = provider.get_meter("holdfast", __version__)
    for name, (kind, text) in metrics.METRICS.items():
        make = meter.create_observable_counter if kind == "counter" else meter.create_observable_gauge
        make(name.replace("_", ".", 1).removesuffix("_total"), [functools.partial(observe, name)], description=text)
    try:
        yield
    finally:
        provider.shutdown(timeout_millis=_TIMEOUT * 1e3)


class _Latest:
    """The samples of an export: every metric asks for its own, and all get what one look found."""

    def __init__(self, runs: Runs) -> None:
        self._runs, self._lock = runs, threading.Lock()
        self._at, self._samples = 0.0, dict[str, list[metrics.Sample]]()

    def samples(self) -> dict[str, list[metrics.Sample]]:
        with self._lock:
            if not self._samples or time.monotonic() - self._at > _FRESH_SECONDS:
                self._samples, self._at = metrics.samples(self._runs), time.monotonic()
            return self._samples


def _address(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{endpoint!r} is not the address of a collector.", fix="--otlp http://HOST:4318")
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/metrics"
