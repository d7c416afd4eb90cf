"""MLflow: a server, a database or a folder, as MLFLOW_TRACKING_URI says. It keeps metrics that come twice once."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Sequence
from typing import Any

import mlflow
from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from holdfast.environment.checks.mlflow import database_behind, sqlite_file, who_locks, why_locked
from holdfast.environment.reach import why_unreachable, without_secrets
from holdfast.errors import CannotSend
from holdfast.integrations.tracker import End, Notice, Row, Tracker, command_of, identity_of, project_of
from holdfast.signals.run_folder import RunFolder

_AT_ONCE = 1000  # metrics that MLflow takes in one request
_IDENTITY = "holdfast.id"
_NOT_IN_NAMES = re.compile(r"[^\w\-. /]")
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}  # the sender tries again itself
_WORDLESS = {"MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}


class MLflow(Tracker):
    """One MLflow run for each run, found again by a tag."""

    def __init__(self, run: RunFolder, state: dict[str, Any]) -> None:
        super().__init__(run, state)
        for name, value in (_PATIENCE | _WORDLESS).items():
            os.environ.setdefault(name, value)
        for logger in ("mlflow", "alembic"):
            logging.getLogger(logger).setLevel(logging.ERROR)
        self._uri = str(os.environ.get("MLFLOW_TRACKING_URI") or state.get("uri") or mlflow.get_tracking_uri())
        if self._uri.startswith("sqlite:"):
            self._uri = f"sqlite:///{sqlite_file(self._uri).absolute()}"
        if self._uri == without_secrets(self._uri) or self._uri.startswith("sqlite:"):
            state["uri"] = self._uri
        with self._words():
            mlflow.set_tracking_uri(self._uri)  # artifacts go by it
            self._client = MlflowClient(self._uri)
            self._id = state["run"] = state.get("run") or self._found()
            experiment = self._client.get_run(self._id).info.experiment_id
        served = self._uri.startswith("http")
        where = f"{self._uri}/#/experiments/{experiment}/runs/{self._id}"
        self.address = where if served else f"mlflow ui --backend-store-uri {self._uri}"

    def metrics(self, rows: Sequence[Row]) -> None:
        """In as few requests as MLflow allows."""
        metrics = [
            Metric(_NOT_IN_NAMES.sub("_", name), value, int(row.time * 1000), row.step)
            for row in rows
            for name, value in row.values.items()
        ]
        with self._words():
            for first in range(0, len(metrics), _AT_ONCE):
                self._client.log_batch(self._id, metrics=metrics[first : first + _AT_ONCE])

    def notice(self, notice: Notice) -> None:
        """A tag for each finding; in MLflow's table of runs it can be searched for."""
        with self._words():
            self._client.set_tag(self._id, f"holdfast.{notice.event}.{notice.code}", f"{notice.severity}: {notice.text}")

    def finish(self, end: End) -> None:
        """The settings, the report, and how it ended."""
        code = end.notice.code
        status = "FINISHED" if code in ("finished", "ended") else "KILLED" if code.startswith("killed") else "FAILED"
        params = [Param(_NOT_IN_NAMES.sub("_", name), str(value)[:500]) for name, value in end.settings.items()]
        with self._words():
            self._client.log_batch(self._id, params=params[:100], tags=[RunTag("holdfast.end", end.notice.text)])
            if end.report is not None:
                self._client.log_artifact(self._id, str(end.report))
            self._client.set_terminated(self._id, status, end_time=int(end.notice.time * 1000) or None)

    def _found(self) -> str:
        """The run with the tag of this one: a sender that was killed just after it had made one left no other trace."""
        run, info = self.run, self.run.info()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or project_of(run)
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(name)
        identity = identity_of(run)
        same = self._client.search_runs([experiment_id], f"tags.`{_IDENTITY}` = '{identity}'", max_results=1)
        if same:
            return str(same[0].info.run_id)
        tags = {_IDENTITY: identity, "holdfast.folder": str(run.path), "mlflow.source.name": command_of(run)}
        if commit := (info.get("git") or {}).get("commit"):
            tags["mlflow.source.git.commit"] = str(commit)
        started = int(float(info.get("started") or 0) * 1000) or None
        return str(self._client.create_run(experiment_id, start_time=started, tags=tags, run_name=run.name).info.run_id)

    @contextlib.contextmanager
    def _words(self) -> Any:
        """What MLflow raises, in a line: a server that is away, a database that somebody else holds."""
        try:
            yield
        except Exception as error:
            text = " ".join(str(error).split())
            shown = without_secrets(self._uri) if self._uri.startswith("http") else self._uri
            file = database_behind(self._uri)  # a server keeps the reason to itself
            if file is not None and "locked" in (why_locked(file) or ""):
                fix = "end the process that holds it, or wait; holdfast sync sends the rest"
                raise CannotSend(who_locks(file), fix=fix) from error
            away = why_unreachable(self._uri, 5.0) if self._uri.startswith("http") else None
            if away is not None:
                fix = "start it, or correct MLFLOW_TRACKING_URI; holdfast sync sends the rest"
                raise CannotSend(f"the MLflow server {shown} cannot be reached: {away}", fix=fix) from error
            fix = "holdfast doctor --only mlflow looks into it; holdfast sync sends the rest"
            raise CannotSend(f"MLflow at {shown} refused: {text[:300]}", fix=fix) from error


KIND = MLflow
