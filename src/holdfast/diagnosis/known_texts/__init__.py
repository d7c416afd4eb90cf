"""Error texts that are known, with what they mean and what helps: knowledge as data, one file for each kind of trouble.

Of several texts that match one line the first counts, so special ones stand before general ones.
"""

from __future__ import annotations

from holdfast.diagnosis.known_texts.checkpoints import OF_CHECKPOINTS
from holdfast.diagnosis.known_texts.compiling import OF_COMPILING
from holdfast.diagnosis.known_texts.cuda import OF_CUDA
from holdfast.diagnosis.known_texts.distributed import OF_RANKS
from holdfast.diagnosis.known_texts.install import OF_INSTALL
from holdfast.diagnosis.known_texts.known_text import ERROR, FOLLOWS, KINDS, NOTE, WARNING, KnownText, wordings
from holdfast.diagnosis.known_texts.loading import OF_LOADING
from holdfast.diagnosis.known_texts.loops import OF_LOOPS
from holdfast.diagnosis.known_texts.memory import OF_MEMORY
from holdfast.diagnosis.known_texts.numbers import OF_NUMBERS
from holdfast.diagnosis.known_texts.shapes import OF_SHAPES
from holdfast.diagnosis.known_texts.surroundings import OF_SURROUNDINGS

KNOWN_TEXTS = (
    *OF_LOADING,
    *OF_MEMORY,
    *OF_CUDA,
    *OF_CHECKPOINTS,
    *OF_SHAPES,
    *OF_LOOPS,
    *OF_NUMBERS,
    *OF_COMPILING,
    *OF_RANKS,
    *OF_INSTALL,
    *OF_SURROUNDINGS,
)

__all__ = ["ERROR", "FOLLOWS", "KINDS", "KNOWN_TEXTS", "NOTE", "WARNING", "KnownText", "wordings"]
