"""Files for Kubernetes, SkyPilot and dstack: the same command, the resources, and a volume that outlives the machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from holdfast_run import typed

from holdfast.errors import UsageError
from holdfast.launch.job import Job
from holdfast.launch.kubernetes import train_job

TRAIN = ("python", "train.py")


def shown(folder: Path, *words: str) -> dict[str, Any]:
    done = typed("launch", *words, "--dry-run", "--", *TRAIN, folder=folder)
    assert done.returncode == 0, done.stderr
    assert not list(folder.glob("*.yaml"))
    content: dict[str, Any] = yaml.safe_load(done.stdout)
    return content


def test_a_train_job_has_the_command_the_resources_and_the_volume(tmp_path: Path) -> None:
    words = ("kubernetes", "--image", "my/image:1", "--volume", "shared", "--nodes", "2", "--gpus-per-node", "8")
    spec = shown(tmp_path, *words)["spec"]
    trainer = spec["trainer"]
    assert trainer["image"] == "my/image:1" and trainer["numNodes"] == 2 and trainer["numProcPerNode"] == 8
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": "8"}
    command = trainer["command"]
    assert command[:2] == ["holdfast", "run"] and "--resume" in command and command[command.index("--nodes") + 1] == "2"
    assert command[-2:] == ["8", "train.py"]
    (patch,) = spec["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = patch["template"]["spec"]["template"]["spec"]
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "shared"}
    assert pod["containers"][0]["volumeMounts"] == [{"name": "runs", "mountPath": command[command.index("--folder") + 1]}]
    assert pod["terminationGracePeriodSeconds"] == 120


def test_kubeflow_itself_accepts_the_train_job() -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install kubeflow-trainer-api")
    job = Job(command=TRAIN, name="train", nodes=2, gpus=8, folder="/runs")
    resource = train_job(job, image="my/image:1", volume="shared", runtime="torch-distributed", grace_seconds=120)
    assert models.TrainerV1alpha1TrainJob.from_dict(resource).to_dict() == resource


def test_a_name_that_kubernetes_refuses_gets_one_that_it_takes() -> None:
    job = Job(command=TRAIN, name="Big_Run")
    with pytest.raises(UsageError) as error:
        train_job(job, image="i", volume="v", runtime="r", grace_seconds=1)
    assert error.value.fix == "--name big-run"


def test_a_sky_task_recovers_and_keeps_its_runs_on_the_volume(tmp_path: Path) -> None:
    task = shown(tmp_path, "cloud", "--volume", "shared", "--gpu", "A100", "--gpus-per-node", "8", "--nodes", "2")
    assert task["num_nodes"] == 2 and task["resources"]["accelerators"] == "A100:8" and task["resources"]["use_spot"] is True
    assert task["resources"]["job_recovery"]["max_restarts_on_errors"] == 3
    assert task["volumes"] == {"/runs": "shared"} and "--folder /runs" in task["run"] and "SKYPILOT_NODE_IPS" in task["run"]


def test_a_dstack_task_is_retried_after_an_interruption(tmp_path: Path) -> None:
    task = shown(tmp_path, "cloud", "--engine", "dstack", "--volume", "shared", "--gpu", "L4", "--on-demand")
    assert task["type"] == "task" and task["resources"] == {"gpu": "L4:1"} and task["spot_policy"] == "on-demand"
    assert "interruption" in task["retry"]["on_events"] and task["volumes"] == [{"name": "shared", "path": "/runs"}]
    assert task["commands"][-1].endswith("python train.py") and "torch.distributed" not in task["commands"][-1]


def test_without_sky_the_file_is_written_and_the_commands_are_shown(tmp_path: Path) -> None:
    done = typed("launch", "cloud", "--volume", "shared", "--gpu", "L4", "--", *TRAIN, folder=tmp_path, PATH="/usr/bin/nothing")
    assert done.returncode == 0 and (tmp_path / "train.sky.yaml").exists()
    assert "pip install skypilot" in done.stdout and "sky jobs launch -y train.sky.yaml" in done.stdout


def test_gpus_without_a_kind_and_an_unknown_engine_are_refused_in_words(tmp_path: Path) -> None:
    no_kind = typed("launch", "cloud", "--volume", "v", "--gpus-per-node", "8", "--", *TRAIN, folder=tmp_path)
    assert "--gpu A100 --gpus-per-node 8" in no_kind.stderr
    engine = typed("launch", "cloud", "--volume", "v", "--engine", "aws", "--", *TRAIN, folder=tmp_path)
    assert "there is no engine 'aws'" in engine.stderr


@pytest.mark.parametrize(("engine", "gpu", "asked"), [("sky", "L4", "L4:1"), ("dstack", "24GB+", "24GB..:1")])
def test_train_in_the_cloud_starts_the_training_once_and_resumes_it_after_that(
    tmp_path: Path, engine: str, gpu: str, asked: str
) -> None:
    words = (
        "train",
        "segment",
        "--data",
        "data",
        "--epochs",
        "3",
        "--cloud",
        engine,
        "--volume",
        "runs",
        "--gpu",
        gpu,
        "--dry-run",
    )
    done = typed(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    task = yaml.safe_load(done.stdout)
    script = task["run"] if engine == "sky" else task["commands"][-1]
    first, _, later = script.partition("else")
    assert "holdfast resume /runs/segment" in first
    assert "holdfast train segment --data data --epochs 3 --project /runs --name segment" in later
    assert asked in (task["resources"].get("accelerators"), task["resources"].get("gpu"))


def test_train_in_the_cloud_needs_a_volume(tmp_path: Path) -> None:
    done = typed("train", "segment", "--data", "data", "--cloud", "sky", folder=tmp_path)
    assert done.returncode == 2 and "--volume" in done.stderr and "fix:" in done.stderr
