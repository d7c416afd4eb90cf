"""A loop on Accelerate, with its gradient accumulation, its clipping and its wrapped optimizer and scheduler."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from story import Story, classifier, digits, norm_of
from torch.utils.data import DataLoader

story = Story()
set_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
loader = DataLoader(digits(70), batch_size=8, shuffle=True)
model = classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in range(4):
    whole, backwards, samples = 0.0, 0, 0
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            whole, backwards, samples = whole + loss.item() / 2, backwards + 1, samples + len(labels)
            if accelerator.sync_gradients:
                story.step(losses=whole, norms=norm_of(model.parameters()), lr=optimizer.param_groups[0]["lr"])
                story.step(epochs=epoch, backwards=backwards, samples=samples)
                story.step(clipped=accelerator.clip_grad_norm_(model.parameters(), 0.5))
                whole, backwards, samples = 0.0, 0, 0
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
story.save(model)
