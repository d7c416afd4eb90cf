"""The house course as data: its trainings, which faults each of them gets, and the stretches that it is run in.

A stretch is one training, one policy, one seed and some faults: a control and then each fault, in a process of its own.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.drills import faults
from holdfast.drills.trial import Training

FOLDER = Path(__file__).parent
ZOO = FOLDER.parent / "healthy_trainings/zoo.py"
CHUNK = 12  # faults of a stretch: enough that its control costs little, few enough that no stretch is the last for long
_SINGLE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
_QUICK = {**_SINGLE, "HOLDFAST_BACK_OFF": "0.2", "HOLDFAST_SAVE_EVERY": "0.3"}  # runs of seconds that stand for runs of days
_VARIANTS = {  # what a fault may need that is a variant of a training here
    "workers": {"WORKERS": "2"},
    "gpu": {"DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "0"},
    "tracker": {},
    "database": {"TRACKER": "metrics.db"},
    "ranks": {},
}
_ALSO_ON_RANKS = ("nan-batch", "nan-gradient", "lr-x100", "process-killed", "deadlock", "checkpoint-truncated")
RESUMES = ("digits_cnn", "char_transformer", "two_ranks", "four_ranks", "two_hosts")
OF_FOUR = ("four_ranks", "four_ranks+cnn", "two_hosts")  # two hosts need root
# Faults that only many ranks have; the network is cut between two hosts.
OF_MANY_RANKS = (
    *("rank-delayed", "rank-data-order", "rank-seed", "collective-skipped", "rank-version", "clock-skew", "folder-read-only"),
    "network-cut",
)
PLAIN = ("digits_mlp", "digits_cnn", "char_transformer", "rnn_rows", "hugging_face", "lightning_digits")
_TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one process runs; without faults it is a control alone."""

    training: str
    policy: str
    seed: int
    codes: tuple[str, ...] = ()

    def as_row(self) -> dict[str, object]:
        """For the command line of that process."""
        return asdict(self)


def every_training(*, gpu: bool) -> list[str]:
    """The names of all trainings with faults; those on a GPU where there is one."""
    names = [*PLAIN, "digits_mlp+workers", "digits_cnn+workers", "hugging_face+workers", "two_ranks", *OF_FOUR]
    names += [f"{name}+{variant}" for variant in ("tracker", "database") for name in ("digits_mlp", "digits_cnn")]
    return [*names, "digits_cnn+gpu", "char_transformer+gpu"] if gpu else names


def training(name: str) -> Training:
    """A training by its name: `digits_cnn`, `digits_cnn+workers`, `zoo gan 0`."""
    if name.startswith("zoo "):
        return Training(command=(sys.executable, str(ZOO), *name.split()[1:]), name=name, environment=_QUICK)
    script, _, variant = name.partition("+")
    if script in ("four_ranks", "two_hosts"):
        return _of_four(name, script, variant or "mlp")
    before = {"tracker": [sys.executable, str(FOLDER / "tracker.py")], "ranks": _TORCHRUN}
    python = before.get("ranks" if script == "two_ranks" else variant, [sys.executable])
    return Training(
        command=(*python, str(FOLDER / f"{script}.py")),
        name=name,
        environment={**_QUICK, **_VARIANTS.get(variant, {})},
        metric="loss" if script == "char_transformer" else "accuracy",
        resume_args="--resume {checkpoint}" if script in RESUMES else None,
        hang_after="10" if variant == "database" else "4",  # SQLite waits for 5 s
    )


def _of_four(name: str, script: str, kind: str) -> Training:
    hosts = [sys.executable, str(FOLDER / "two_hosts.py")]
    return Training(
        command=(*(hosts if script == "two_hosts" else [*_TORCHRUN[:-1], "4"]), str(FOLDER / "four_ranks.py"), kind),
        name=name,
        environment=_QUICK,
        metric="accuracy",
        resume_args="--resume {checkpoint}",
        hang_after="4",
    )


def codes_of(name: str, policy: str) -> list[str]:
    """The faults that a training is given: all it may have, each in the variant that it needs; under `heal` the survivable."""
    if name.startswith(("four_ranks", "two_hosts")):
        return [code for code in OF_MANY_RANKS if (code == "network-cut") == name.startswith("two_hosts")]
    variant = name.partition("+")[2] or ("ranks" if name == "two_ranks" else "")
    found = [code for code in faults.every() if _belongs(code, variant)]
    return [code for code in found if policy != "heal" or faults.find(code).expected.survivable]


def _belongs(code: str, variant: str) -> bool:
    special = set(faults.find(code).needs) & set(_VARIANTS)
    if code in OF_MANY_RANKS and not _fits_two(code):
        return False
    return special == ({variant} if variant else set()) or (variant == "ranks" and code in _ALSO_ON_RANKS)


def _fits_two(code: str) -> bool:
    return faults.find(code).rank in (None, 0, 1) and code != "folder-read-only"


def stretches(names: Iterable[str], policies: Sequence[str], seeds: Sequence[int], only: Sequence[str]) -> Iterator[Stretch]:
    """The whole course with faults, in pieces of a few minutes at most."""
    for name in names:
        for policy in policies:
            codes = [code for code in codes_of(name, policy) if not only or code in only]
            for seed in seeds:
                yield from in_chunks(Stretch(name, policy, seed, tuple(codes)))


def in_chunks(stretch: Stretch) -> Iterator[Stretch]:
    """A stretch in pieces, its faults mixed so that slow ones do not come together."""
    codes = sorted(stretch.codes, key=lambda code: random.Random(code).random())
    for begin in range(0, len(codes), CHUNK):
        yield Stretch(stretch.training, stretch.policy, stretch.seed, tuple(codes[begin : begin + CHUNK]))


def healthy(names: Iterable[str], seeds: Sequence[int], *, zoo: bool) -> Iterator[Stretch]:
    """Controls alone: the trainings of the course with more seeds, and the zoo of healthy trainings."""
    first = max(seeds) + 1
    for name in names:
        for seed in range(first, first + 5):
            yield Stretch(name, "heal" if seed % 2 else "observe", seed)
    for number, name in enumerate(_zoo() if zoo else ()):
        for seed in range(2):
            yield Stretch(f"zoo {name} {seed}", "heal" if (number + seed) % 2 else "observe", seed)


def _zoo() -> list[str]:
    """The names in the zoo, read from its text: importing it takes seconds."""
    lines = ZOO.read_text(encoding="utf-8").split("TRAININGS = {")[1].split("}")[0].splitlines()
    return [line.split('"')[1] for line in lines if '"' in line]
