"""Which module is to blame, from which gradients are bad."""

from __future__ import annotations

from typing import Any

from every_case import every_case

from holdfast.inside.guard.failure_context import first_bad, input_evidence

ORDER = ["stem.weight", "body.0.weight", "body.0.bias", "body.1.weight", "head.weight"]


def judged(*bad: str, loss_finite: bool = True) -> dict[str, Any]:
    return first_bad(ORDER, bad, loss_finite=loss_finite)


def test_finite_gradients_blame_nobody() -> None:
    assert judged() == {} and first_bad([], ["a"], loss_finite=True) == {}


def test_bad_up_to_a_layer_began_in_that_layer() -> None:
    found = judged("stem.weight", "body.0.weight", "body.0.bias")
    assert (found["parameter"], found["module"], found["began_in"]) == ("stem.weight", "stem", "body.0")
    assert found["words"] == (
        "In forward order all 3 gradients up to body.0.bias are not finite and from body.1.weight on they are: "
        "it began in the backward pass of body.0."
    )


def test_only_one_bad_gradient_began_in_its_own_module() -> None:
    found = judged("body.1.weight")
    assert (found["parameter"], found["began_in"]) == ("body.1.weight", "body.1")
    assert found["words"].startswith("Only the gradient of body.1.weight is not finite")


@every_case(
    ("loss_finite", "began_in", "words"),
    [(False, None, "The loss is not finite"), (True, "head", "the backward pass of the loss or of head")],
)
def test_all_bad_came_with_the_loss_unless_that_is_finite(loss_finite: bool, began_in: str | None, words: str) -> None:
    found = judged(*ORDER, loss_finite=loss_finite)
    assert (found["parameter"], found["began_in"]) == ("stem.weight", began_in)
    assert words in found["words"]


def test_bad_here_and_there_is_told_as_it_is() -> None:
    found = judged("stem.weight", "body.1.weight")
    assert (found["parameter"], found["began_in"]) == ("stem.weight", "body.1")
    assert "2 gradients, the last body.1.weight, are not finite" in found["words"]
    assert "down to the last layer" in judged("body.1.weight", "head.weight")["words"]


def test_the_model_itself_has_no_name() -> None:
    found = first_bad(["scale", "head.weight"], ["scale"], loss_finite=True)
    assert (found["module"], found["began_in"]) == ("", "") and "the model itself" in found["words"]


@every_case(
    ("order", "bad", "expected"),
    [
        (["conv.weight", "conv.bias", "head.weight"], ["conv.weight"], True),
        (["conv.weight", "conv.bias", "head.weight"], ["conv.weight", "conv.bias"], False),
        (["conv.weight", "conv.bias", "head.weight"], ["head.weight"], False),
        (["conv.weight", "norm.weight"], ["conv.weight"], False),  # there is no bias that tells
    ],
)
def test_a_bad_weight_gradient_beside_a_finite_one_of_the_bias_tells_of_the_input(
    order: list[str], bad: list[str], expected: bool
) -> None:
    assert (input_evidence(order, bad) is not None) is expected
