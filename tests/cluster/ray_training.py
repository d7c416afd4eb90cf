"""Two Ray workers learn a line; worker 1 is killed once after the third epoch: RESULTS KILLED DAMAGE(0|1)."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import ray
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

from holdfast.integrations.ray import get_checkpoint, report, watched

EPOCHS, STEPS = 6, 20


def train_func(config: dict[str, str]) -> None:
    """Resume, learn, report."""
    rank, folder = ray.train.get_context().get_world_rank(), Path(config["results"])
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    first, checkpoint = 0, get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as path:
            state = torch.load(Path(path) / "state.pt")
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
        (folder / f"resumed-{rank}").write_text(str(first))
    for epoch in range(first, EPOCHS):
        torch.manual_seed(epoch)
        for _ in range(STEPS):
            inputs = torch.randn(16, 4)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        with tempfile.TemporaryDirectory() as path:
            if rank == 0:
                torch.save(state, Path(path) / "state.pt")
                if epoch == 2 and config["damage"] == "1":
                    whole = (Path(path) / "state.pt").read_bytes()
                    (Path(path) / "state.pt").write_bytes(whole[: len(whole) // 2])
            given = Checkpoint.from_directory(path) if rank == 0 else None
            report({"val_loss": float(loss), "epoch": epoch}, checkpoint=given)
        if epoch == 2 and rank == 1 and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        (folder / "weights.json").write_text(json.dumps(weights.tolist()))


if __name__ == "__main__":
    results, killed, damage = sys.argv[1:]
    Path(results).mkdir(parents=True, exist_ok=True)
    if killed == "0":
        (Path(results) / "killed").touch()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        watched(train_func, name="line", folder=f"{results}/runs"),
        train_loop_config={"results": results, "damage": damage},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name="line", storage_path=f"{results}/storage", failure_config=FailureConfig(max_failures=2)),
    )
    print(trainer.fit().metrics)
