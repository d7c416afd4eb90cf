"""Which module is to blame, from which gradients are bad."""

from __future__ import annotations

from every_case import every_case
from torch import nn

from holdfast.inside.guard.first_non_finite import FirstNonFinite, first_bad, forward_order

ORDER = ["stem.weight", "body.0.weight", "body.0.bias", "body.1.weight", "head.weight"]


def judged(*bad: str, loss_finite: bool | None = None) -> FirstNonFinite:
    found = first_bad(ORDER, {name: int(name in bad) for name in ORDER}, loss_finite=loss_finite)
    assert found is not None
    return found


def test_finite_gradients_blame_nobody() -> None:
    assert first_bad(ORDER, dict.fromkeys(ORDER, 0)) is None
    assert first_bad([], {}) is None


def test_bad_up_to_a_layer_began_in_that_layer() -> None:
    found = judged("stem.weight", "body.0.weight", "body.0.bias")
    assert (found.parameter, found.module, found.began_in, found.bad, found.of) == ("stem.weight", "stem", "body.0", 3, 5)
    assert found.words == (
        "In forward order all 3 gradients up to body.0.bias are bad and from body.1.weight on they are finite: "
        "it began in the backward pass of body.0."
    )


def test_only_one_bad_gradient_began_in_its_own_module() -> None:
    found = judged("body.1.weight")
    assert (found.parameter, found.began_in) == ("body.1.weight", "body.1")
    assert found.words.startswith("Only the gradient of body.1.weight is bad")


@every_case(
    ("loss_finite", "began_in", "words"),
    [
        (None, None, "came with the loss"),
        (False, None, "The loss itself is not finite"),
        (True, "head", "the backward pass of the loss or of head"),
    ],
)
def test_all_bad_came_with_the_loss_unless_that_is_finite(loss_finite: bool | None, began_in: str | None, words: str) -> None:
    found = judged(*ORDER, loss_finite=loss_finite)
    assert (found.parameter, found.began_in) == ("stem.weight", began_in)
    assert words in found.words


def test_bad_here_and_there_is_told_as_it_is() -> None:
    found = judged("stem.weight", "body.1.weight")
    assert (found.parameter, found.began_in) == ("stem.weight", "body.1")
    assert "2 gradients, the last body.1.weight, are bad" in found.words
    assert "down to the last layer" in judged("body.1.weight", "head.weight").words


def test_parameters_without_a_gradient_are_left_out_and_an_unknown_number_counts() -> None:
    found = first_bad(ORDER, {"body.0.weight": -1, "head.weight": 0, "a": 0})
    assert found is not None and (found.parameter, found.bad, found.of) == ("body.0.weight", 1, 3)


def test_the_model_itself_has_no_name() -> None:
    found = first_bad(["scale", "head.weight"], {"scale": 1, "head.weight": 0})
    assert found is not None and (found.module, found.began_in) == ("", "") and "the model itself" in found.words


def test_the_order_is_that_of_registration_or_of_execution() -> None:
    model = nn.ModuleDict({"last": nn.Linear(2, 1), "first": nn.Linear(2, 2)})
    assert forward_order(model) == ["last.weight", "last.bias", "first.weight", "first.bias"]
    wrapped = nn.DataParallel(model)
    assert forward_order(wrapped, ["first", "last", "first"]) == ["first.weight", "first.bias", "last.weight", "last.bias"]
