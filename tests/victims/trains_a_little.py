"""A training of a few steps."""

import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).pow(2).mean().backward()
    optimizer.step()
print("trained")
