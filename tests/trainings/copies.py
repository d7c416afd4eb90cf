"""A model that is copied and pickled while it is trained: an average of its weights, and a copy of it as a whole."""

from __future__ import annotations

import copy
import io
import pickle

import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch import nn
from torch.utils.data import DataLoader


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


story = Story()
loader = DataLoader(digits(70), batch_size=16, shuffle=True)
model = classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
average = torch.optim.swa_utils.AveragedModel(model)
for epoch in range(4):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        story.step(losses=loss, norms=norm_of(model.parameters()), epochs=epoch, samples=len(labels))
        optimizer.step()
        average.update_parameters(model)
        best, file = copy.deepcopy(model), io.BytesIO()
        torch.save(model, file)
        story.step(pickled=len(pickle.dumps(best)), saved=len(file.getvalue()), hooks=hooks_of(best))
story.save(model, average, best)
