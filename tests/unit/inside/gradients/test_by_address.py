"""Reading by address: the same number as torch gives, and no number where memory is not what it seems."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import pytest
import torch
from every_case import every_case
from torch import nn

from holdfast.inside.gradients.host import AVAILABLE, launch_by_address, quick_norm, quick_value

pytestmark = pytest.mark.skipif(
    not AVAILABLE, reason="the compiled part was not built, or this torch lacks a function that it calls"
)


def _parameter(gradient: torch.Tensor | None) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros(gradient.shape if gradient is not None else 1))
    parameter.grad = gradient
    return parameter


@every_case("sizes", [[1], [3, 5], [4096, 4097, 15], [100_000, 7]])
def test_the_norm_is_the_one_that_torch_computes(sizes: list[int]) -> None:
    torch.manual_seed(0)
    parameters = [_parameter(torch.randn(size)) for size in sizes]
    expected = math.sqrt(sum(p.grad.double().square().sum().item() for p in parameters if p.grad is not None))
    assert quick_norm(parameters) == pytest.approx(expected, rel=1e-6)


@every_case("bad", [math.nan, math.inf, -math.inf])
@every_case("position", [0, 15, 16, 4095, 4096, 5000])
def test_one_bad_value_anywhere_makes_the_norm_non_finite(bad: float, position: int) -> None:
    gradient = torch.ones(5001)
    gradient[position] = bad
    assert not math.isfinite(quick_norm([_parameter(torch.ones(3)), _parameter(gradient)]) or 0.0)


def test_parameters_without_a_gradient_are_left_out() -> None:
    assert quick_norm([_parameter(None), _parameter(torch.full((4,), 2.0))]) == 4.0
    assert quick_norm([_parameter(None)]) == -1.0


@every_case(
    "gradient",
    [
        torch.ones(4, 6).t(),
        torch.ones(1).expand(8),
        torch.ones(8)[::2],
        torch.ones(4, dtype=torch.float64),
        torch.ones(4).to_sparse(),
        torch.ones(1 << 19),
    ],
    ids=["transposed", "expanded", "strided", "double", "sparse", "large"],
)
def test_memory_that_is_not_one_dense_row_of_floats_is_left_to_torch(gradient: torch.Tensor) -> None:
    parameter = nn.Parameter(torch.zeros(gradient.shape, dtype=gradient.dtype))
    parameter.grad = gradient
    assert quick_norm([parameter]) is None


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, as distributed ones are."""

    @staticmethod
    def __new__(cls, like: torch.Tensor) -> Wrapper:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, like.size(), dtype=like.dtype, device=like.device)  # type: ignore[attr-defined]
        return made

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:  # type: ignore[override]
        raise AssertionError("its values were asked for")


def test_a_gradient_without_memory_is_left_to_torch() -> None:
    emptied, meta = torch.ones(3), nn.Parameter(torch.zeros(3, device="meta"))
    parameter = _parameter(emptied)
    emptied.untyped_storage().resize_(0)  # as sharded training does with what it has gathered
    assert quick_norm([parameter]) is None
    meta.grad = torch.ones(3, device="meta")
    assert quick_norm([meta]) is None
    assert quick_norm([_parameter(Wrapper(torch.ones(3)))]) is None


def test_parameters_whose_tensors_were_swapped_are_read_where_they_are_now() -> None:
    one, other = _parameter(torch.full((4,), 2.0)), _parameter(torch.full((1,), 5.0))
    torch.utils.swap_tensors(one, other)
    assert (quick_norm([one]), quick_norm([other])) == (5.0, 4.0)


def test_images_with_the_channels_last_are_read_as_they_lie() -> None:
    assert quick_norm([_parameter(torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last))]) == pytest.approx(math.sqrt(120))


def test_a_gradient_of_one_row_is_read_whatever_its_unused_stride_says() -> None:
    gradient = torch.ones(3, 4)[:, 1:2].t()[:, :1].contiguous()
    assert quick_norm([_parameter(gradient)]) == 1.0


def test_a_loss_is_read_with_its_graph_attached() -> None:
    weight = torch.tensor(1.5, requires_grad=True)
    assert quick_value((weight * 2).sum()) == 3.0
    assert quick_value(torch.tensor([1.0, 2.0])) is None
    assert quick_value(torch.tensor(1)) is None
    assert quick_value(nn.Parameter(torch.tensor(1.0))) is None
    assert quick_value("loss") is None


def test_a_kernel_is_started_with_the_grid_stream_and_arguments_that_are_given() -> None:
    word, address = ctypes.c_uint, ctypes.c_void_p
    started: list[tuple[object, ...]] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, address, *[word] * 7, address, ctypes.POINTER(address), address)
    def driver(*given: Any) -> int:
        started.append((*given[:9], ctypes.cast(given[9][0], ctypes.POINTER(ctypes.c_int)).contents.value, given[10]))
        return 7

    argument = ctypes.c_int(42)
    pointers = (address * 1)(ctypes.addressof(argument))
    call = ctypes.cast(driver, address).value
    assert launch_by_address(call, 2**63 + 5, 3, 256, 2**40, ctypes.addressof(pointers)) == 7
    assert started == [(2**63 + 5, 3, 1, 1, 256, 1, 1, 0, 2**40, 42, None)]
