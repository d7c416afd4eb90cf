"""The metrics are those of the papers: equal to pysodmetrics, and right on cases that can be computed by hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("scipy", reason="needs pip install 'holdfast[segment]'")

from holdfast.train.segment.metrics import Scores, scores


def cases(count: int, seed: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Random predictions and masks: discs and noise of many sizes; some empty, full, perfect or a single pixel."""
    from scipy.ndimage import gaussian_filter

    random = np.random.default_rng(seed)
    for place in range(count):
        height, width = random.integers(5, 90, 2)
        field = gaussian_filter(random.normal(size=(height, width)), random.uniform(0.3, 6))
        mask = field > np.quantile(field, random.uniform(0.02, 0.98))
        noisy = field + random.uniform(0, 2) * field.std() * random.normal(size=field.shape)
        prediction = 1 / (1 + np.exp(-random.uniform(0.5, 20) * (noisy - np.quantile(noisy, 0.7)) / (noisy.std() + 1e-9)))
        if place % 20 == 0:
            mask[:] = place % 40 == 0
        if place % 20 == 1:
            mask[:] = False
            mask[random.integers(height), random.integers(width)] = True
        if place % 20 == 2:
            prediction = mask.astype(float)
        if place % 20 == 3:
            prediction = (prediction > 0.5).astype(float)
        if place % 20 == 4:
            prediction[:] = place % 40 == 4
        yield prediction, mask


def test_every_metric_equals_pysodmetrics() -> None:
    theirs = pytest.importorskip("py_sod_metrics", reason="needs pip install --no-deps pysodmetrics: it pins an old numpy")
    largest, undefined = Scores(*[0.0] * 6), 0
    for prediction, mask in cases(200):
        handlers = {
            "iou": theirs.IOUHandler(with_dynamic=False, with_adaptive=False, with_binary=True),
            "dice": theirs.DICEHandler(with_dynamic=False, with_adaptive=False, with_binary=True),
        }
        overlap = theirs.FmeasureV2(metric_handlers=handlers)
        others = theirs.MAE(), theirs.Smeasure(), theirs.Emeasure(), theirs.WeightedFmeasure()
        for metric in (overlap, *others):
            metric.step(prediction, mask, normalize=False)
        found = overlap.get_results()
        mae, structure, alignment, weighted = (metric.get_results() for metric in others)
        expected = Scores(
            float(found["iou"]["binary"]),
            float(found["dice"]["binary"]),
            float(mae["mae"]),
            float(structure["sm"]),
            float(alignment["em"]["curve"].mean()),
            float(weighted["wfm"]),
        )
        own = scores(prediction, mask)
        if not mask.any() and not (prediction > 0.5).any():  # nothing to find, nothing found: theirs is 0
            own = own._replace(iou=0.0, dice=0.0, weighted_f=0.0)
        if np.isnan(expected.s_measure):  # one of the four regions is empty: theirs is the mean of nothing
            own, expected = own._replace(s_measure=0.0), expected._replace(s_measure=0.0)
            undefined += 1
        largest = Scores(*np.maximum(largest, np.abs(np.subtract(own, expected))))
    print(f"largest differences: {largest}; {undefined} undefined")
    assert max(largest) < 1e-6 and not np.isnan(largest).any()
    assert undefined < 10


def test_a_perfect_prediction_scores_one() -> None:
    mask = np.zeros((40, 50), bool)
    mask[10:30, 5:25] = True
    assert scores(mask.astype(float), mask)._replace(e_measure=1) == pytest.approx(Scores(1, 1, 0, 1, 1, 1), abs=1e-12)
    assert scores(mask.astype(float), mask).e_measure == pytest.approx(1, abs=0.01), "all pixels are at or above threshold 0"


def test_half_an_object_found() -> None:
    mask, found = np.zeros((2, 20, 20))
    mask[5:15, 5:15] = 1
    found[5:15, 5:10] = 1
    result = scores(found, mask.astype(bool))
    assert (result.iou, result.dice, result.mae) == pytest.approx((0.5, 2 / 3, 50 / 400))


def test_an_image_without_an_object() -> None:
    nothing = np.zeros((20, 20), bool)
    clean, alarm = scores(np.zeros((20, 20)), nothing), scores(np.ones((20, 20)), nothing)
    assert (clean.iou, clean.dice, clean.weighted_f, clean.s_measure) == (1, 1, 1, 1)
    assert alarm[:2] == (0, 0) and alarm.s_measure == 0 and alarm.weighted_f == 0


def test_an_error_far_from_the_object_costs_more_than_one_beside_it() -> None:
    mask = np.zeros((60, 60), bool)
    mask[20:40, 20:40] = True
    near, far = mask.astype(float), mask.astype(float)
    near[20:40, 40:42] = 1
    far[0:20, 56:58] = 1
    assert scores(near, mask).iou == scores(far, mask).iou
    assert scores(near, mask).weighted_f > scores(far, mask).weighted_f
