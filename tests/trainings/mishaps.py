"""Things that go wrong and the script goes on: mishaps.py OUT nan|step_raises|clip_raises|not_scalar|names_raise."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch import nn
from torch.utils.data import DataLoader

kind = sys.argv[2]


class SometimesRaises(torch.optim.SGD):
    def step(self, closure: None = None) -> None:
        if number in (4, 9):
            raise RuntimeError("no step today")
        super().step(closure)


class Nameless(nn.Sequential):
    """Gives its parameters, but not by name."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        for layer in self:
            yield from layer.parameters(recurse)

    def named_parameters(self, *args: object, **kwargs: object) -> Iterator[tuple[str, nn.Parameter]]:
        raise RuntimeError("no names here")


story = Story()
loader = DataLoader(digits(70), batch_size=16, shuffle=True)
model = Nameless(*classifier()) if kind == "names_raise" else classifier()
optimizer = (SometimesRaises if kind == "step_raises" else torch.optim.SGD)(model.parameters(), lr=0.05)
number = 0
for _ in range(4):
    for inputs, labels in loader:
        optimizer.zero_grad()
        scores = model(inputs)
        loss = F.cross_entropy(scores, labels)
        if (kind == "nan" and number in (5, 6)) or (kind == "clip_raises" and number == 5):
            loss = loss + (scores[0, 0] - scores[0, 0].detach() - 1.0).sqrt() * 0
        if kind == "not_scalar":
            F.cross_entropy(scores, labels, reduction="none").backward(torch.ones(len(labels)) / len(labels))
        else:
            loss.backward()
        facts = {"losses": float(loss.detach()), "norms": norm_of(model.parameters()), "stepped": True}
        try:
            if kind == "clip_raises":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, error_if_nonfinite=True)
            if kind == "nan" and number in (5, 6):
                story.facts.setdefault("bad", []).append(
                    {name: int((~p.grad.isfinite()).sum()) for name, p in model.named_parameters()}
                )
                for parameter in model.parameters():
                    parameter.grad.nan_to_num_(0.0) if number == 6 else None
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
            if kind == "nan" and number == 5:  # as if nothing had happened: the rest of the run stays finite
                with torch.no_grad():
                    for parameter, old in zip(model.parameters(), before, strict=True):
                        parameter.copy_(old)
        except RuntimeError:
            facts["stepped"] = False
        story.step(**facts)
        number += 1
story.save(model)
