from __future__ import annotations

import contextlib
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.errors import UsageError
from holdfast.train import extras
from holdfast.train.detect.evaluate import DetectionEvaluator, DetectionResult, Predictions, Targets

pytest.importorskip("faster_coco_eval", reason="needs pip install 'holdfast[detect]'")

CAT, DOG = [10.0, 10.0, 50.0, 50.0], [100.0, 100.0, 180.0, 160.0]
Image = tuple[Predictions, Targets]


def evaluated(*images: Image, classes: tuple[str, ...] = ("cat", "dog")) -> DetectionResult:
    evaluator = DetectionEvaluator(classes)
    for predictions, targets in images:
        evaluator.add(predictions, targets)
    return evaluator.result()


def image(predictions: list[tuple[list[float], float, int]], targets: list[tuple[list[float], int]], index: int = 0) -> Image:
    boxes, scores, classes = ([one[place] for one in predictions] for place in range(3))
    return Predictions(boxes, scores, classes), Targets([box for box, _ in targets], [kind for _, kind in targets], index)


def random_images(count: int, classes: int, seed: int = 0) -> list[Image]:
    """Objects, and predictions beside them: some shifted, some of another class, more of them than COCO counts."""
    random = np.random.default_rng(seed)
    images = []
    for index in range(count):
        places, sizes = random.uniform(0, 400, (8, 2)), random.uniform(10, 150, (8, 2))
        kinds = random.integers(0, classes, 8)
        of = random.integers(0, 8, 130)
        near = np.concatenate([places[of], places[of] + sizes[of]], 1) + random.normal(0, 6, (130, 4))
        guessed = np.where(random.random(130) < 0.8, kinds[of], random.integers(0, classes, 130))
        scores = random.permutation(130) / 130
        truth = Targets(np.concatenate([places, places + sizes], 1).astype(np.float32), kinds, index)
        images.append((Predictions(near.astype(np.float32), scores.astype(np.float32), guessed), truth))
    return images


def test_perfect_predictions_score_one() -> None:
    result = evaluated(image([(CAT, 0.9, 0), (DOG, 0.8, 1)], [(CAT, 0), (DOG, 1)]))
    assert result.metrics == pytest.approx(
        {"map": 1, "map50": 1, "map75": 1, "precision": 1, "recall": 1, "f1": 1, "map/cat": 1, "map/dog": 1}
    )
    assert result.worst(5) == []


def test_a_box_that_is_off_counts_only_at_the_overlaps_it_reaches() -> None:
    shifted = [CAT[0] + 8, CAT[1], CAT[2] + 8, CAT[3]]  # IoU 32 / 48: found at 0.50, 0.55, 0.60 and 0.65
    metrics = evaluated(image([(shifted, 0.9, 0)], [(CAT, 0)])).metrics
    assert (metrics["map50"], metrics["map75"]) == (1, 0)
    assert metrics["map"] == pytest.approx(0.4)


def test_a_class_that_is_never_found_lowers_every_mean() -> None:
    result = evaluated(image([(CAT, 0.9, 0)], [(CAT, 0), (DOG, 1)]))
    assert result.metrics["map"] == pytest.approx(0.5)
    assert result.metrics["map/dog"] == 0
    assert (result.metrics["precision"], result.metrics["recall"]) == pytest.approx((0.5, 0.5))


def test_a_class_without_objects_is_not_part_of_the_mean() -> None:
    result = evaluated(image([(CAT, 0.9, 0), (DOG, 0.3, 1)], [(CAT, 0)]))
    assert result.metrics["map"] == 1
    assert list(result.curves) == ["cat"]
    assert "map/dog" not in result.metrics


@pytest.mark.parametrize("classes", [1, 5])
def test_map_is_that_of_pycocotools(classes: int) -> None:
    pytest.importorskip("pycocotools", reason="needs pip install pycocotools")
    images = random_images(40, classes)
    stats = pycocotools_stats(images, classes)
    metrics = evaluated(*images, classes=tuple(map(str, range(classes)))).metrics
    assert 0.1 < metrics["map"] < 0.9
    assert (metrics["map"], metrics["map50"], metrics["map75"]) == pytest.approx(tuple(stats[:3]), abs=1e-9)


def pycocotools_stats(images: list[Image], classes: int) -> Any:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth: list[dict[str, Any]] = []
    found = []
    for predictions, targets in images:
        for (left, top, right, bottom), kind in zip(targets.boxes.tolist(), targets.classes.tolist(), strict=True):
            box = [left, top, right - left, bottom - top]
            one = {"image_id": targets.index, "category_id": kind, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            truth.append({"id": len(truth) + 1, **one})
        boxes = predictions.boxes.astype(np.float64)
        boxes[:, 2:] = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
        numbers = np.full(len(boxes), targets.index)
        rows = np.column_stack([numbers, boxes, predictions.scores, predictions.classes])
        found.append(rows[np.argsort(-predictions.scores)[:100]])
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "info": {},
            "images": [{"id": index} for index in range(len(images))],
            "categories": [{"id": kind, "name": str(kind)} for kind in range(classes)],
            "annotations": truth,
        }
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(np.concatenate(found)), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats


def test_the_confusion_matrix_counts_what_is_taken_for_what() -> None:
    bird = [300.0, 20.0, 340.0, 60.0]
    nothing = [400.0, 300.0, 450.0, 350.0]
    first = image([(CAT, 0.9, 0), (DOG, 0.8, 0), (nothing, 0.7, 1)], [(CAT, 0), (DOG, 1), (bird, 1)])
    sure = image([(bird, 0.6, 1)], [(bird, 1)], index=1)
    result = evaluated(first, sure)
    assert result.threshold == pytest.approx(0.6)
    assert result.confusion.tolist() == [
        [1, 0, 0],  # the cat is found
        [1, 1, 1],  # a dog is taken for a cat, one is found, one is missed
        [0, 1, 0],  # a dog is found where there is none
    ]


def test_predictions_under_the_threshold_are_not_confused() -> None:
    noise = [([200.0 + 3 * step, 200.0, 230.0 + 3 * step, 230.0], 0.05, 1) for step in range(20)]
    result = evaluated(image([(CAT, 0.9, 0), (DOG, 0.8, 1), *noise], [(CAT, 0), (DOG, 1)]))
    assert result.threshold == pytest.approx(0.8)
    assert result.confusion.sum() == 2
    assert (result.metrics["precision"], result.metrics["f1"]) == (1, 1)


def test_two_boxes_on_one_object_are_one_hit_and_one_mistake() -> None:
    near = [value + 1 for value in CAT]
    result = evaluated(image([(CAT, 0.9, 0), (near, 0.8, 0), (DOG, 0.7, 1)], [(CAT, 0), (DOG, 1)]))
    assert result.images[0].hits.tolist() == [True, False, True]
    assert result.images[0].mistakes == 1


def test_the_worst_images_come_first() -> None:
    images = [
        image([(CAT, 0.9, 0), (DOG, 0.8, 1)], [(CAT, 0), (DOG, 1)], index=3),
        image([(CAT, 0.9, 0)], [(CAT, 0), (DOG, 1)], index=5),
        image([], [(CAT, 0)], index=8),
        image([], [(CAT, 0), (DOG, 1)], index=9),
    ]
    result = evaluated(*images)
    assert [one.index for one in result.worst(3)] == [9, 8, 5]
    assert result.worst(3)[2].error == 0.5


def test_ranks_merge_to_what_one_process_computes() -> None:
    images = random_images(12, 3, seed=1)
    whole = evaluated(*images, classes=("a", "b", "c"))
    ranks = [DetectionEvaluator(["a", "b", "c"]) for _ in range(2)]
    for number, (predictions, targets) in enumerate([*images, images[0]]):  # a sampler repeats one to fill up
        ranks[number % 2].add(predictions, targets)
    received = pickle.loads(pickle.dumps(ranks[1]))
    ranks[0].merge(received)
    result = ranks[0].result()
    assert result.metrics == whole.metrics
    assert (result.confusion == whole.confusion).all()


def test_tensors_of_half_precision_are_taken() -> None:
    predictions = Predictions(torch.tensor([CAT]).bfloat16(), torch.tensor([0.5]).half(), torch.tensor([0]))
    assert evaluated((predictions, Targets(torch.tensor([CAT]), torch.tensor([0]), 0))).metrics["map50"] == 1


def test_a_diverged_model_scores_zero_and_raises_nothing() -> None:
    nothing = float("nan")
    metrics = evaluated(image([([nothing] * 4, nothing, 0)], [(CAT, 0)])).metrics
    assert (metrics["map"], metrics["f1"]) == (0, 0)


def test_without_a_single_object_there_is_no_score() -> None:
    assert np.isnan(evaluated(image([(CAT, 0.9, 0)], [])).metrics["map"])
    assert np.isnan(evaluated().metrics["f1"])


def test_a_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.importlib.sys.modules, "faster_coco_eval", None)
    with pytest.raises(UsageError, match="faster-coco-eval is not installed") as caught:
        DetectionEvaluator(["cat"])
    assert caught.value.fix == "pip install 'holdfast[detect]'"
