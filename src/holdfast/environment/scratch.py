"""The environment of a script that is started for a purpose of ours: to measure, to compare, to drill.

Such runs are not experiments. What they report to a tracker goes to a scratch folder, so that nobody's project fills with
them and no server is waited for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_SITE = Path(__file__).resolve().parents[1] / "inside" / "site"


def offline_trackers(folder: Path) -> dict[str, str]:
    """Variables that send what a script logs to a folder instead of its tracker; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "MLFLOW_REGISTRY_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "_MLFLOW_SERVER_ARTIFACT_ROOT": str(folder / "mlartifacts"),  # else artifacts go to ./mlruns, whatever the address
        "TRACKIO_DIR": str(folder / "trackio"),
        "COMET_OFFLINE_DIRECTORY": str(folder / "comet"),
        "COMET_START_ONLINE": "0",
        "NEPTUNE_MODE": "offline",
        "CLEARML_OFFLINE_MODE": "1",
        "SWANLAB_MODE": "offline",
        "SWANLAB_LOG_DIR": str(folder / "swanlab"),
    }


def started_inside(variables: Mapping[str, str], begin: str, folder: Path, **more: str) -> dict[str, str]:
    """An environment in which Python calls `begin` (module:function) once torch is there, without an outer Holdfast."""
    kept = {name: value for name, value in variables.items() if not name.startswith("HOLDFAST_")}
    path = os.pathsep.join(filter(None, (str(_SITE), kept.get("PYTHONPATH", ""))))
    return {**kept, **offline_trackers(folder), "PYTHONPATH": path, "HOLDFAST_ALSO": begin, **more}
