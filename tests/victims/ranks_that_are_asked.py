"""Two ranks that train until they are told to stop, and print their weights."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
until, finish = time.monotonic() + 60.0, False
while True:
    opt.zero_grad()
    net(torch.randn(4, 8)).pow(2).mean().backward()
    opt.step()
    over = torch.tensor(float(finish or time.monotonic() > until))
    dist.all_reduce(over)
    if over > 0:
        break
    time.sleep(0.01)
ended = f"rank {dist.get_rank()} ended with {[parameter.detach().tolist() for parameter in net.parameters()]}\n"
print(ended, end="", flush=True)  # in one piece: the other rank prints at the same moment
dist.destroy_process_group()
