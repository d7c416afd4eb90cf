"""Everything is made inside functions and gone afterwards; three trainings one after the other.

The first has a scaler and a data set of its own, the others share one."""

from __future__ import annotations

import gc
import weakref

import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch.utils.data import DataLoader

story = Story()


def train(number: int, width: int, steps: int, data: object) -> tuple[list[weakref.ref], dict[str, torch.Tensor]]:
    loader = DataLoader(data or digits(70, seed=number), batch_size=16, shuffle=True)
    next(iter(loader))  # a look at one batch
    model = classifier(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2 / (number + 1))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=number == 0)
    left = steps
    while left:
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            norm = norm_of(model.parameters()) / scaler.get_scale()
            story.step(losses=loss, norms=norm, lr=optimizer.param_groups[0]["lr"], training=number, samples=len(labels))
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            left -= 1
            if not left:
                break
    model.eval()  # and it stays so while the next training begins
    with torch.no_grad():
        F.cross_entropy(model(inputs), labels)
    kept = [weakref.ref(thing) for thing in (model, optimizer, loader, *model.parameters())]
    return kept, {name: tensor.clone() for name, tensor in model.state_dict().items()}


final, alive, shared = [], [], list(digits(70))
for number, (width, steps) in enumerate([(24, 12), (24, 7), (32, 9)]):
    references, weights = train(number, width, steps, shared if number else None)
    gc.collect()
    alive.append(sum(reference() is not None for reference in references))
    final.append(weights)
story.save(final=final, alive=alive)
