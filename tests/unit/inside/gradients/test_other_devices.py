"""Gradients on Apple's or Intel's GPUs: what tensors there cannot do is not asked of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from holdfast.inside.control.fast_forward import _checksum
from holdfast.inside.gradients.host import read_each_on_host
from holdfast.inside.gradients.step_metrics import StepMetrics


class Elsewhere(torch.Tensor):
    """A tensor that refuses what those on Apple's GPUs refuse: double precision, and NumPy without a copy to the host."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cpu:
            return args[0].as_subclass(torch.Tensor)
        if func in (torch.Tensor.numpy, torch.Tensor.double) or kwargs.get("dtype") is torch.float64:
            raise TypeError("not on this device")
        if getattr(func, "__self__", None) is torch.Tensor.device:
            return torch.device("mps")
        return super().__torch_function__(func, types, args, kwargs)


def elsewhere(values: list[float]) -> Elsewhere:
    return torch.tensor(values).as_subclass(Elsewhere)


def test_the_stand_in_refuses_what_the_device_refuses() -> None:
    for refused in (lambda tensor: tensor.numpy(), lambda tensor: tensor.double()):
        with pytest.raises(TypeError, match="not on this device"):
            refused(elsewhere([1.0]))


def test_gradients_are_read_though_the_device_has_no_double_precision() -> None:
    stats = read_each_on_host([elsewhere([3.0, 4.0]), elsewhere([1e30, 0.0]), elsewhere([float("nan"), 1.0])], [0, 1, 2])
    assert stats.each is not None and stats.non_finite == 1
    np.testing.assert_allclose(stats.each.norms[:2], [5.0, 1e30])
    assert stats.each.non_finite.tolist() == [0, 0, 1]


def test_norms_of_weights_and_the_loss_are_taken_over() -> None:
    metrics = StepMetrics(None)
    metrics.add("weights", elsewhere([1.0, 2.0]).requires_grad_())
    metrics.add("loss", elsewhere([0.5])[0])
    assert metrics.weights.tolist() == [1.0, 2.0] and metrics.loss == 0.5


def test_what_went_into_a_model_is_compared_there_too() -> None:
    assert _checksum(elsewhere([1.0, 2.0])) == _checksum(torch.tensor([1.0, 2.0]))
