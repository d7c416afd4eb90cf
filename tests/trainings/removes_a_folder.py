"""A training during which a folder is removed: removes_a_folder.py OUT FOLDER."""

from __future__ import annotations

import shutil
import sys

import torch
from story import Story

story = Story()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(1500):  # more than the rows of a first file
    if number == 10:
        shutil.rmtree(sys.argv[2])
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.step()
    story.step(losses=loss)
story.save(model)
