"""Two ranks learn digits together by DDP over gloo: torchrun --standalone --nproc-per-node 2 two_ranks.py [--resume last.pt]."""

from __future__ import annotations

import argparse
import json

import torch
import torch.distributed as dist
from digits_data import WORKERS, begin, split
from learning import evaluate, learn
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 20  # some 9 s: ranks act together, 3 s after it was decided


def main() -> None:
    """Train, evaluate after each pass, keep the last and the best by rank 0, and print the last accuracy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    begin()
    data, rest = split(64)
    sampler = DistributedSampler(data, drop_last=True)
    train = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True, num_workers=WORKERS)
    held_out = DataLoader(rest, batch_size=200)
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(train))
    parts = {"model": network, "optimizer": optimizer, "schedule": schedule}
    first, best, accuracy = 0, 0.0, 0.0
    if given.resume:
        saved = torch.load(given.resume)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        first, best = saved["epoch"], saved["best"]
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        mean = learn(model, optimizer, schedule, train)
        loss, accuracy = evaluate(network, held_out)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: train loss {mean:.4f}, held-out loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
            state = {name: part.state_dict() for name, part in parts.items()}
            state |= {"epoch": epoch + 1, "best": max(best, accuracy), "step": (epoch + 1) * len(train)}
            torch.save(state, "last.pt")
            if accuracy > best:
                torch.save(state, "best.pt")
        best = max(best, accuracy)
    if dist.get_rank() == 0:
        print(json.dumps({"accuracy": accuracy}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
