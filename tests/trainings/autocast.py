"""Mixed precision: autocast.py OUT none|scaler|fused [clip]. Two losses are so large that the scaler leaves the update out."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch.utils.data import DataLoader

scaling, clipping = sys.argv[2], "clip" in sys.argv
story = Story()
loader = DataLoader(digits(70), batch_size=16, shuffle=True)
model = classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=scaling == "fused")
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=6, enabled=scaling != "none")
number = 0
for _ in range(4):
    for inputs, labels in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(inputs), labels)
        if scaling != "none" and number in (3, 12):
            loss = loss * 1e38
        before, scale = [p.detach().clone() for p in model.parameters()], scaler.get_scale()
        scaler.scale(loss).backward()
        norms = norm_of(model.parameters()) / scale
        story.step(losses=loss, norms=norms, scales=scale, lr=optimizer.param_groups[0]["lr"])
        if clipping:
            scaler.unscale_(optimizer)
            story.step(clipped=torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        scaler.step(optimizer)
        scaler.update()
        story.step(skipped=int(all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))))
        number += 1
story.save(model)
