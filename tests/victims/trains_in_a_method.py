"""A training inside a method, with names of its own, that nobody prepared for anything; ends when `patience` is 0."""

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


class Runner:
    def __init__(self) -> None:
        inputs = torch.randn(256, 8)
        self.net = torch.nn.Linear(8, 1)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.plan = torch.optim.lr_scheduler.StepLR(self.opt, step_size=10**9)
        self.data = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)

    def fit(self, seconds: float) -> int:
        until, patience, count = time.monotonic() + seconds, 5, 0
        while time.monotonic() < until:
            for batch, target in self.data:
                self.opt.zero_grad()
                torch.nn.functional.mse_loss(self.net(batch), target).backward()
                self.opt.step()
                count += 1
                time.sleep(0.004)
                if patience == 0:
                    return count
        return count


def main(seconds: float) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    runner = Runner()
    print("ready", flush=True)
    print(f"made {runner.fit(seconds)} steps")


if __name__ == "__main__":
    main(float(sys.argv[1]))
