"""What the model is trained on: images and boxes of every format, the same on any number of workers; errors name the file."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import made_data as made
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from holdfast.data.samples import ImageSet
from holdfast.errors import UsageError
from holdfast.state.position import Position
from holdfast.train.detect.augment import Augmentation
from holdfast.train.detect.boxes import open_boxes
from holdfast.train.detect.dataset import DetectionData, UnreadableImage, collate

BCCD = Path(__file__).parents[4].parent / "shared/data/bccd/yolo/data.yaml"
SIZE = 96


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def yolo(tmp_path: Path) -> Path:
    made.yolo(tmp_path / "set")
    return tmp_path / "set/data.yaml"


def training(path: Path, **options: Any) -> DetectionData:
    options = {"imgsz": SIZE, "augmentation": Augmentation(), **options}
    return DetectionData(open_boxes(path), "train", **options)


def loader(data: DetectionData, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_size=4, collate_fn=collate, **options)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return torch.equal(one["image"], other["image"]) and torch.equal(one["boxes"], other["boxes"])


def pixels(box: torch.Tensor) -> list[float]:
    x, y, width, height = (box * SIZE).tolist()
    return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]


@pytest.mark.parametrize("make", [made.yolo, made.coco, made.voc])
def test_images_and_boxes_of_each_format_are_stretched_to_one_size(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "set")
    data = DetectionData(open_boxes(tmp_path / "set"), "val", imgsz=SIZE)
    assert data.classes == made.NAMES and len(data) == made.MANY["val"]
    first = next(index for index in range(len(data)) if data.file(index).endswith("val00.jpg"))
    seed, sample = made.MANY["train"], data[first]
    width, height = made.SIZE
    assert sample["image"].shape == (3, SIZE, SIZE) and sample["image"].dtype == torch.uint8
    assert sample["size"] == (height, width) and sample["index"] == first
    for (kind, left, top, right, bottom), box, number in zip(made.boxes(seed), sample["boxes"], sample["classes"], strict=True):
        stretched = [left / width * SIZE, top / height * SIZE, right / width * SIZE, bottom / height * SIZE]
        assert pixels(box) == pytest.approx(stretched, abs=0.01) and number == kind
    stretched_by_pillow = Image.open(tmp_path / "set" / data.file(first)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(stretched_by_pillow).astype(int) - sample["image"].permute(1, 2, 0).numpy()).max() <= 1


def test_classes_without_a_list_are_those_of_all_splits_and_the_same_in_each(tmp_path: Path) -> None:
    made.voc(tmp_path / "set")
    (tmp_path / "set/classes.txt").unlink()
    made.write(tmp_path / "set/Annotations/val00.xml", made.voc_xml("val00", made.boxes(0)).replace("cat", "ant"))
    data = open_boxes(tmp_path / "set")
    both = [DetectionData(data, split, imgsz=SIZE).classes for split in ("train", "val")]
    assert both == [["ant", "cat", "dog", "owl"]] * 2


def test_boxes_are_clipped_to_the_image_and_those_without_area_are_dropped(yolo: Path) -> None:
    lines = [made.yolo_line(0, -10, 4, 20, 20), made.yolo_line(1, 10, 10, 10, 30), made.yolo_line(2, 70, 5, 80, 9)]
    made.write(yolo.parent / "labels/val/val00.txt", "".join(lines))
    sample = DetectionData(open_boxes(yolo), "val", imgsz=SIZE)[0]
    assert sample["classes"].tolist() == [0] and pixels(sample["boxes"][0])[0] == pytest.approx(0, abs=1e-4)
    made.write(yolo.parent / "labels/val/val00.txt", "")
    empty = DetectionData(open_boxes(yolo), "val", imgsz=SIZE)[0]
    assert empty["boxes"].shape == (0, 4) and empty["boxes"].dtype == torch.float32


def test_a_photo_that_is_stored_lying_is_turned_as_its_labels_mean_it(tmp_path: Path) -> None:
    made.voc(tmp_path / "set")
    standing = np.full((64, 48, 3), 20, np.uint8)
    standing[40:60, 10:20] = 250
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.rot90(standing).copy()).save(tmp_path / "set/JPEGImages/val00.jpg", exif=exif, quality=95)
    made.write(tmp_path / "set/Annotations/val00.xml", made.voc_xml("val00", [(0, 10, 40, 20, 60)], size=(48, 64)))
    sample = DetectionData(open_boxes(tmp_path / "set"), "val", imgsz=SIZE)[0]
    assert sample["size"] == (64, 48)
    left, top, right, bottom = (round(value) for value in pixels(sample["boxes"][0]))
    assert sample["image"][0, top + 2 : bottom - 2, left + 2 : right - 2].min() > 180
    assert (sample["image"][0] > 180).sum() <= (right - left + 2) * (bottom - top + 2)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "I;16"])
def test_an_image_of_any_mode_becomes_rgb(yolo: Path, mode: str) -> None:
    (yolo.parent / "images/val/val00.jpg").unlink()
    grey = Image.fromarray(np.arange(48 * 64, dtype=np.uint16).reshape(48, 64) * 16)
    picture = grey if mode == "I;16" else made.picture(1, mode=mode)
    picture.save(yolo.parent / f"images/val/val00.{'tif' if mode == 'CMYK' else 'png'}")
    image = DetectionData(open_boxes(yolo), "val", imgsz=SIZE)[0]["image"]
    assert image.shape == (3, SIZE, SIZE) and image.float().std() > 5


def test_a_large_jpeg_is_decoded_small_and_its_boxes_stay_on_the_object(yolo: Path) -> None:
    large = np.full((48 * 20, 64 * 20, 3), 20, np.uint8)
    large[5 * 20 : 21 * 20, 4 * 20 : 20 * 20] = 250
    Image.fromarray(large).save(yolo.parent / "images/val/val00.jpg", quality=95)
    made.write(yolo.parent / "labels/val/val00.txt", made.yolo_line(0, 4, 5, 20, 21))
    sample = DetectionData(open_boxes(yolo), "val", imgsz=SIZE)[0]
    down, across = np.nonzero(sample["image"][0].numpy() > 135)
    found = [across.min(), down.min(), across.max() + 1, down.max() + 1]
    assert pixels(sample["boxes"][0]) == pytest.approx(found, abs=1) and sample["size"] == (960, 1280)


# Augmentation: by sample and epoch, and by nothing else.


def test_a_sample_is_the_same_for_its_seed_epoch_and_index_and_another_for_any_other(yolo: Path) -> None:
    data, again, other = training(yolo), training(yolo), training(yolo, seed=1)
    assert same(data[3], again[3]) and not same(data[3], data[4]) and not same(data[3], other[3])
    data.set_epoch(1)
    assert not same(data[3], again[3])
    data.set_epoch(0)
    torch.manual_seed(7), np.random.seed(7)
    assert same(data[3], again[3]), "no other generator decides"


@pytest.mark.parametrize(
    ("context", "cache"), [("fork", None), ("fork", "ram"), pytest.param("spawn", "ram", marks=pytest.mark.slow)]
)
def test_workers_give_the_batches_that_one_process_gives(yolo: Path, context: str, cache: Any) -> None:
    data = training(yolo)
    alone = list(loader(data))
    if cache:
        data.fill_cache(cache)
    several = list(loader(data, num_workers=2, multiprocessing_context=context))
    assert len(alone) == len(several) == made.MANY["train"] // 4
    for one, other in zip(alone, several, strict=True):
        assert torch.equal(one["images"], other["images"]) and torch.equal(one["index"], other["index"])
        assert all(map(torch.equal, one["boxes"], other["boxes"])) and torch.equal(one["size"], other["size"])
    images = torch.cat([batch["images"] for batch in several])
    assert len({image.numpy().tobytes() for image in images}) == len(data), "no two are alike, whichever worker made them"


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_resumes_with_the_same_augmented_images_and_loads_no_used_one(yolo: Path, workers: int) -> None:
    def batches() -> Position[Any]:
        data = training(yolo)
        data.set_epoch(2)
        order = torch.Generator().manual_seed(5)
        return Position(loader(data, shuffle=True, num_workers=workers, generator=order), fast=True)

    whole = [batch["images"] for batch in batches()]
    stopped = batches()
    drawn = iter(stopped)
    for _ in range(2):
        next(drawn)
    state = stopped.state_dict()
    resumed = batches()
    resumed.loader.dataset.set_epoch(0)  # a new process has not reached this epoch
    resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
    rest = [batch["images"] for batch in resumed]
    assert len(rest) == len(whole) - 2 and all(map(torch.equal, rest, whole[2:]))


def test_mosaic_ends_with_the_epoch_that_was_named(yolo: Path) -> None:
    still = Augmentation(hsv_h=0, hsv_s=0, hsv_v=0, degrees=0, translate=0, scale=0, fliplr=0, mosaic=1.0)
    data, plain = training(yolo, augmentation=still, mosaic_epochs=2), DetectionData(open_boxes(yolo), "train", imgsz=SIZE)
    data.set_epoch(1)
    assert not torch.equal(data[0]["image"], plain[0]["image"])
    data.set_epoch(2)
    assert same(data[0], plain[0])


def test_a_batch_has_one_entry_for_each_sample(yolo: Path) -> None:
    data = training(yolo)
    batch = collate([data[index] for index in (5, 2, 9)])
    assert batch["images"].shape == (3, 3, SIZE, SIZE) and batch["images"].dtype == torch.uint8
    assert batch["index"].tolist() == [5, 2, 9] and batch["size"].tolist() == [[48, 64]] * 3
    for boxes, classes in zip(batch["boxes"], batch["classes"], strict=True):
        assert boxes.shape == (len(classes), 4) and classes.dtype == torch.int64
        assert (boxes >= 0).all() and (boxes <= 1).all()


# What cannot be trained on.


def wrong(path: Path, split: str = "train") -> UsageError:
    with pytest.raises(UsageError) as caught:
        DetectionData(open_boxes(path), split, imgsz=SIZE)
    return caught.value


def test_a_missing_split_is_told_with_those_that_are_there(yolo: Path) -> None:
    yolo.write_text("path: .\ntrain: images/train\nnames: [cat, dog, owl]\n")
    error = wrong(yolo, "val")
    assert "no images in the split val; its splits: train" in error.problem and "val: images/val" in error.fix
    yolo.write_text("path: .\ntrain: images/train\nval: images/vall\nnames: [cat, dog, owl]\n")
    assert "'images/vall' is not there" in wrong(yolo, "val").problem


def test_a_wrong_class_count_is_told(yolo: Path) -> None:
    yolo.write_text(yolo.read_text() + "nc: 5\n")
    assert "nc is 5, but names has 3" in wrong(yolo).problem
    yolo.write_text("path: .\ntrain: images/train\nval: images/val\nnames: [cat, dog]\n")
    error = wrong(yolo)
    assert "has class 2, which data.yaml does not list" in error.problem and f"holdfast validate {yolo}" in error.fix


def test_data_without_boxes_or_labels_is_refused(tmp_path: Path, yolo: Path) -> None:
    made.image_folder(tmp_path / "folder")
    assert "holds no boxes" in wrong(tmp_path / "folder").problem
    for label in (yolo.parent / "labels/train").iterdir():
        label.unlink()
    assert "no image in the split train" in wrong(yolo).problem


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_cannot_be_read_is_named_with_the_fix(yolo: Path, workers: int) -> None:
    broken = yolo.parent / "images/train/train05.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    data = training(yolo, augmentation=None)
    with pytest.raises(UnreadableImage) as caught:
        list(loader(data, num_workers=workers))
    assert caught.value.problem.startswith("images/train/train05.jpg cannot be read: ")
    assert "Traceback" not in str(caught.value) and caught.value.fix.endswith(f"holdfast validate {yolo}), then: holdfast resume")


def test_an_image_that_was_deleted_since_is_named(yolo: Path) -> None:
    data = training(yolo, augmentation=None)
    (yolo.parent / "images/train/train05.jpg").unlink()
    with pytest.raises(UnreadableImage, match=r"train05.jpg cannot be read: .*No such file"):
        data[5]


# Real data.


@pytest.fixture(scope="module")
def cells() -> ImageSet:
    if not BCCD.exists():
        pytest.skip(f"no BCCD at {BCCD}")
    return open_boxes(BCCD)


def test_boxes_sit_on_the_white_blood_cells_of_bccd_whatever_is_done_to_them(cells: ImageSet) -> None:
    """White blood cells are the only dark violet thing in these pictures: saturation says whether a box holds one."""
    amount = Augmentation(hsv_h=0, hsv_s=0, hsv_v=0)
    data = DetectionData(cells, "train", imgsz=320, augmentation=amount)
    white, inside, outside = data.classes.index("WBC"), [], []
    for index in range(24):
        sample = data[index]
        image = sample["image"].float()
        violet = ((image[2] - image[1]) > 60).numpy()
        covered = np.zeros_like(violet)
        for box, kind in zip(sample["boxes"], sample["classes"], strict=True):
            if kind == white:
                x, y, width, height = (box * 320).tolist()
                covered[int(y - height / 2) : int(y + height / 2) + 1, int(x - width / 2) : int(x + width / 2) + 1] = True
        inside.append(violet[covered].sum())
        outside.append(violet[~covered].sum())
    assert sum(inside) > 12_000 and sum(inside) > 9 * sum(outside)
