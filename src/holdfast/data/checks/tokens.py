"""Token ids beyond the vocabulary, tokens that the tokenizer does not know, and a vocabulary that does not fit the model."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.data.problem import Kind, Problem, problem

RANGE = Kind(
    "token-out-of-range", "critical", "token ids beyond the embedding: {count}",
    "use the tokenizer that the ids were made with, or resize the embedding: on a GPU this is a device-side assert",
)  # fmt: skip
UNKNOWN = Kind(
    "unknown-tokens",
    "warning",
    "tokens that the tokenizer does not know: {count}",
    "train the tokenizer on this text, or use one with byte fall-back",
)
TOO_SMALL = Kind(
    "vocabulary-mismatch", "critical", "the tokenizer has more tokens than the model has embedding rows",
    "call model.resize_token_embeddings(len(tokenizer)), or use the tokenizer that belongs to the model",
)  # fmt: skip
OTHER = Kind(
    "vocabulary-mismatch", "warning", "the model has far more embedding rows than the tokenizer has tokens",
    "look whether the tokenizer belongs to this model",
)  # fmt: skip
ENCODING = Kind(
    "text-encoding",
    "warning",
    "characters that are no valid UTF-8: {count}",
    "convert the text to UTF-8, or read it with its own encoding",
)
EMPTY = Kind("text-empty", "critical", "texts that are empty: {count}", "copy them again")
REPEATED = Kind(
    "split-leak",
    "warning",
    "long lines of one split that are in another one too: {count}",
    "split by document, and remove what is repeated",
)
KINDS = (RANGE, UNKNOWN, TOO_SMALL, OTHER, ENCODING, EMPTY, REPEATED)

_UNKNOWN_SHARE = 0.01
_FAR_LARGER, _ROUNDED = 1.25, 512  # embeddings are rounded up to multiples of 64 to 512


def vocabulary_problems(vocabulary: int, rows: int | None, file: str) -> Iterator[Problem]:
    """Compare the tokenizer with the model."""
    if rows is None:
        return
    example = f"{file}: {vocabulary:,} tokens, {rows:,} embedding rows"
    if vocabulary > rows:
        yield problem(TOO_SMALL, count=vocabulary - rows, files=[file], example=example)
    elif rows > max(_FAR_LARGER * vocabulary, vocabulary + _ROUNDED):
        yield problem(OTHER, count=rows - vocabulary, files=[file], example=example)


def token_problems(file: str, tokens: int, unknown: int, example: str) -> Iterator[Problem]:
    """Judge how much of a text the tokenizer does not know."""
    if tokens and unknown > _UNKNOWN_SHARE * tokens:
        said = f"{file}: {unknown / tokens:.1%} of {tokens:,} tokens" + (f", e.g. {example!r}" if example else "")
        yield problem(UNKNOWN, count=unknown, files=[file], example=said, share=unknown / tokens)


def range_problems(file: str, beyond: int, largest: int, limit: int) -> Iterator[Problem]:
    """Judge the ids against what the model knows."""
    if beyond:
        yield problem(
            RANGE,
            count=beyond,
            files=[file],
            example=f"{file}: id {largest:,}, the limit is {limit:,}",
            largest=largest,
            limit=limit,
        )
