"""`holdfast launch cloud`: a task of SkyPilot or dstack. Both start it again when a spot machine is taken away."""

from __future__ import annotations

from typing import Any

from holdfast.launch.job import Job, Shell, script

_INSTALL = "pip install holdfast"


def task(engine: str, job: Job, *, gpu: str | None, spot: bool, volume: str, command: str | None = None) -> dict[str, Any]:
    """A task for one of the two; `command` is run instead of `holdfast run` with the job's. `gpu` is a kind, or `24GB+`."""
    make = sky_task if engine == "sky" else dstack_task
    return make(job, gpu=gpu, spot=spot, volume=volume, command=command)


def sky_task(job: Job, *, gpu: str | None, spot: bool, volume: str, command: str | None = None) -> dict[str, Any]:
    """A managed job of SkyPilot, which uploads this folder, installs what it needs and recovers from a lost machine."""
    rendezvous = _rendezvous(job, "$SKYPILOT_TASK_ID", "$first_node")
    first_node = 'first_node=$(echo "$SKYPILOT_NODE_IPS" | head -n1)\n' if job.nodes > 1 else ""
    recovery: dict[str, Any] = {"max_restarts_on_errors": job.restarts}
    resources: dict[str, Any] = {"use_spot": spot, "job_recovery": recovery}
    return {
        "name": job.name,
        "num_nodes": job.nodes,
        "resources": resources | ({"accelerators": f"{gpu}:{job.ranks_per_node}"} if gpu else {}),
        "workdir": ".",
        "volumes": {job.folder: volume},
        "setup": f"{_requirements()}\n",
        "run": f"{first_node}{command or script(job.lines(job.name, rendezvous))}\n",
    }


def dstack_task(job: Job, *, gpu: str | None, spot: bool, volume: str, command: str | None = None) -> dict[str, Any]:
    """A task of dstack, which runs this folder's repository."""
    rendezvous = _rendezvous(job, "$DSTACK_RUN_NAME", "$DSTACK_MASTER_NODE_IP")
    kind = f"{gpu.removesuffix('+')}.." if gpu and gpu.endswith("GB+") else gpu
    resources = {"resources": {"gpu": f"{kind}:{job.ranks_per_node}"}} if gpu else {}
    return {
        "type": "task",
        "name": job.name,
        "nodes": job.nodes,
        "commands": [_requirements(), command or script(job.lines(job.name, rendezvous))],
        **resources,
        "spot_policy": "spot" if spot else "on-demand",
        "volumes": [{"name": volume, "path": job.folder}],
        "retry": {"on_events": ["no-capacity", "interruption", "error"], "duration": "1d"},
    }


def _requirements() -> str:
    return f"if [ -f requirements.txt ]; then pip install -r requirements.txt; fi; {_INSTALL}"


def _rendezvous(job: Job, run: str, first_node: str) -> list[str]:
    where = ["--rdzv-backend", "c10d", "--rdzv-id", Shell(run), "--rdzv-endpoint", Shell(f"{first_node}:29500")]
    return where if job.nodes > 1 else []
