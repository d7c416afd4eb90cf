"""Files that people name and that are no logs: what they are, and what to name instead."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import LogUnreadable

_TEXT = "name a CSV, JSON or text log"
_KINDS = (
    (b"PK\x03\x04", "an archive (a PyTorch checkpoint, or a zip)", "name the log beside it"),
    (b"\x89HDF", "an HDF5 file (Keras weights)", "name the CSV of its CSVLogger, or save history.history as JSON"),
    (b"\x89PNG", "an image", "name the log that it was drawn from"),
    (b"\xff\xd8\xff", "an image", "name the log that it was drawn from"),
    (b"%PDF", "a PDF", "name the log that it was drawn from"),
    (b"PAR1", "a Parquet file", "convert it to CSV: pandas.read_parquet(FILE).to_csv('log.csv')"),
    (b"\x93NUMPY", "a numpy array without names", "convert it to CSV with a header: epoch,loss"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it: zstd -d FILE"),
)
_PICKLES = (".pkl", ".pickle", ".p")
_JSON = "export it as JSON in the training: json.dump(history.history, open('history.json', 'w'), default=float)"


def refusal(path: Path, head: bytes) -> LogUnreadable | None:
    """Why a file is not read, by its first bytes; None if they say nothing against it."""
    if not head.strip():
        return LogUnreadable(f"{path} is empty.", fix="name a log that is not empty")
    if path.suffix.lower() in _PICKLES or (head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")):
        return LogUnreadable(f"{path} is a pickle. Opening it would run code in it, so Holdfast does not.", fix=_JSON)
    for mark, kind, fix in _KINDS:
        if head.startswith(mark):
            return LogUnreadable(f"{path} is {kind}, not a log.", fix=fix)
    return None


def binary(path: Path) -> LogUnreadable:
    """Bytes that are no text and of no known kind."""
    return LogUnreadable(f"{path} is a binary file, not a log.", fix=_TEXT)
