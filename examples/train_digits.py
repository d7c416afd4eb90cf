"""A plain training script without any Holdfast code.

holdfast run -- python examples/train_digits.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
train, validation = torch.utils.data.random_split(data, [0.8, 0.2])
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for _ in range(20):
    model.train()
    for images, labels in DataLoader(train, batch_size=50, shuffle=True):
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    model.eval()
    with torch.no_grad():
        images, labels = next(iter(DataLoader(validation, batch_size=len(validation))))
        logits = model(images)
        loss = nn.functional.cross_entropy(logits, labels)
print(f"validation loss {loss:.3f}, accuracy {(logits.argmax(1) == labels).float().mean():.3f}")
