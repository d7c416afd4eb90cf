"""`holdfast launch kubernetes`: a TrainJob of Kubeflow Trainer v2. Its runs are on a volume that all pods share."""

from __future__ import annotations

import re
from typing import Any

from holdfast.errors import UsageError
from holdfast.launch.job import Job

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")


def train_job(job: Job, *, image: str, volume: str, runtime: str, grace_seconds: int) -> dict[str, Any]:
    """Kubeflow gives each pod its number and the address of the first one (PET_*), which torchrun reads by itself."""
    if not _NAME.match(job.name):
        near = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")
        raise UsageError(f"Kubernetes takes no job of the name {job.name!r}.", fix=f"--name {near}")
    command = [word for line in job.lines(job.name, ()) for word in line]
    pod = {
        "terminationGracePeriodSeconds": grace_seconds,
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": volume}}],
        "containers": [{"name": "node", "volumeMounts": [{"name": "runs", "mountPath": job.folder}]}],
    }
    replicated = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    trainer: dict[str, Any] = {"image": image, "command": command, "numNodes": job.nodes, "numProcPerNode": job.ranks_per_node}
    if job.gpus is not None:
        trainer["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": str(job.gpus)}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job.name},
        "spec": {
            "runtimeRef": {"name": runtime, "kind": "ClusterTrainingRuntime"},
            "trainer": trainer,
            "runtimePatches": [
                {
                    "manager": "holdfast.launch/kubernetes",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
                }
            ],
        },
    }
