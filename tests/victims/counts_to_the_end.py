"""A training that does not know how to resume: counts_to_the_end.py STEPS SECONDS_PER_STEP; prints a hash of its weights."""

import hashlib
import sys
import time

import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(int(sys.argv[1])):
    inputs = torch.randn(16, 8)
    optimizer.zero_grad()
    (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    time.sleep(float(sys.argv[2]))
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
print("weights", hashlib.sha256(weights.numpy().tobytes()).hexdigest())
