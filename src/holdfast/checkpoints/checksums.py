"""CRC-32 of bytes that were read in pieces, each by another thread: the checksums of the pieces give that of the whole.

Bits are the coefficients of a polynomial over the numbers 0 and 1, the first bit belonging to x^0; the checksum is what is left
after a division by `_DIVISOR`. Bytes that follow multiply what came before by a power of x.
"""

from __future__ import annotations

from functools import lru_cache

_DIVISOR = 0xEDB8_8320
_ONE = 1 << 31  # x^0


def joined(first: int, second: int, length: int) -> int:
    """The checksum of some bytes followed by `length` others, from the checksum of each."""
    return _product(_power(8 * length), first) ^ second


@lru_cache(maxsize=64)
def _power(exponent: int) -> int:
    """x to the power of a number, as what is left after the division; by squaring."""
    result, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            result = _product(result, square)
        square = _product(square, square)
        exponent >>= 1
    return result


def _product(one: int, other: int) -> int:
    result, bit = 0, _ONE
    while bit:
        if one & bit:
            result ^= other
        other = (other >> 1) ^ (_DIVISOR if other & 1 else 0)
        bit >>= 1
    return result
