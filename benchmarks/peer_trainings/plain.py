"""A plain loop that prints a line for every step: plain.py nothing | anomaly | nan-check."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from network import BATCH, EPOCHS, MOMENTUM, RATE, Clock, begin, keep_pace, make, split
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

_PAGE = os.sysconf("SC_PAGE_SIZE")


def host_mem() -> float:
    """MB of memory that this process has."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE / 2**20
    except OSError:
        return 0.0


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Loss and accuracy on held-out digits."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    for images, labels in loader:
        logits = model(images)
        loss += cross_entropy(logits, labels).item() * len(labels)
        right += int((logits.argmax(1) == labels).sum())
        count += len(labels)
    model.train()
    return loss / count, right / count


def main(how: str) -> None:
    """Train, print every step, evaluate and save after each pass."""
    begin()
    torch.autograd.set_detect_anomaly(how == "anomaly")
    train, rest = split(64)
    loader = DataLoader(train, batch_size=BATCH, shuffle=True, drop_last=True)
    held_out = DataLoader(rest, batch_size=200)
    model, clock, step, accuracy = make(), Clock(), 0, 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))
    for _ in range(EPOCHS):
        for images, labels in loader:
            begun = time.perf_counter()
            loss = cross_entropy(model(images), labels)
            if how == "nan-check" and not torch.isfinite(loss):
                print(f"step {step}: the loss is not finite, the batch is skipped", flush=True)
                continue
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None])
            optimizer.step()
            schedule.step()
            took, rate = time.perf_counter() - begun, schedule.get_last_lr()[0]
            print(
                f"step {step} loss={loss.item():.6g} grad_norm={norm.item():.6g} lr={rate:.6g} step_time={took:.5f} "
                f"host_mem={host_mem():.1f}"
            )
            step += 1
            keep_pace()
            clock.step()
        loss, accuracy = evaluate(model, held_out)
        print(f"step {step} val_loss={loss:.6g} val_acc={accuracy:.4f}", flush=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "last.pt")
    clock.end(accuracy)


if __name__ == "__main__":
    main(sys.argv[1])
