"""Ranks that save and restore: OUT EPOCHS SECONDS_PER_STEP [WORDS]. Each writes its samples, rank 0 the weights at the end.

WORDS: `fsdp` shards the model; `until=N` saves and ends after step N; `hang` has the last rank wait for ever at step 13 once;
`hold` makes steps from 10 on slow until there is a file `go`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import holdfast

GLOBAL_BATCH = 24


def wait_for_a_file() -> None:
    """A file that never comes."""
    while not Path("never").exists():
        time.sleep(0.1)


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
out = Path(sys.argv[1])
out.mkdir(exist_ok=True)
torch.manual_seed(0)
inputs = torch.randn(240, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(240))
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=GLOBAL_BATCH // world, sampler=sampler)
model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(8, 36), torch.nn.Tanh(), torch.nn.Linear(36, 1))
if "fsdp" in sys.argv:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
else:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
run = holdfast.watch(model, optimizer)
restored = run.restore()
until = next((int(word.removeprefix("until=")) for word in sys.argv if word.startswith("until=")), None)
step = restored.step if restored is not None else 0
first_epoch = (restored.epoch or 0) if restored is not None else 0
with (out / f"{time.time():.3f}-{world}-{rank}-{os.getpid()}.jsonl").open("w") as seen:
    for epoch in range(first_epoch, int(sys.argv[2])):
        sampler.set_epoch(epoch)
        for batch, target, numbers in run.batches(loader):
            optimizer.zero_grad()
            loss = (model(batch) - target).square().mean()
            loss.backward()
            optimizer.step()
            step += 1
            if "hang" in sys.argv and run.attempt == 1 and rank == world - 1 and step == 13:
                wait_for_a_file()
            print(json.dumps({"step": step, "epoch": epoch, "samples": numbers.tolist()}), file=seen, flush=True)
            if step % 5 == 0 or step == until:
                run.save(wait=True)
            if step == until:
                run.close()
                dist.barrier()
                sys.exit()
            time.sleep(float(sys.argv[3]))
            for _ in range(10):
                if "hold" in sys.argv and step >= 10 and not Path("go").exists():
                    time.sleep(0.4)
whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
moments = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
whole += [m.full_tensor() if hasattr(m, "full_tensor") else m for m in moments]
if rank == 0:
    flat = torch.cat([one.detach().flatten() for one in whole])
    (out / "out.json").write_text(json.dumps({"steps": step, "values": flat.tolist()}))
run.close()
dist.barrier()
dist.destroy_process_group()
