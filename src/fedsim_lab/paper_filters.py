"""Filters with sizes from the paper's formulas (appendix "Additional Background")."""

import math
from dataclasses import replace

from fedsim.errors import SettingError
from fedsim.linkage.encoding import NumericFilter, StringFilter
from fedsim.validation import MAX_FILTER_BITS, validate_integer, validate_number


def paper_bits(width: float, threshold: float, *, epsilon: float, delta: float) -> int:
    """Return the paper's filter size for a range of this width, before rounding to whole bytes.

    >>> paper_bits(1.49385, 0.01, epsilon=0.03, delta=0.03)
    1164061
    """
    validate_number(width, "width", above=0)
    validate_number(threshold, "threshold", above=0)
    validate_number(epsilon, "epsilon", above=0, below=1)
    validate_number(delta, "delta", above=0, below=1)
    wanted, tolerated = 2 * width * math.log(1 / delta), threshold * epsilon**2
    if wanted > MAX_FILTER_BITS * tolerated:
        message = f"the paper's size exceeds {MAX_FILTER_BITS} bits; choose a larger threshold, epsilon or delta"
        raise SettingError(message, code="filter-too-large", limit=MAX_FILTER_BITS)
    return math.ceil(wanted / tolerated)


def paper_numeric_filter(low: float, high: float, threshold: float, *, epsilon: float, delta: float) -> NumericFilter:
    """Return the numeric filter with the paper's size, rounded up to whole bytes.

    A filter then has fewer than (1 - ``epsilon``) of the expected ones with probability below ``delta``. This epsilon
    is not a privacy budget, and the size is about a thousand times what finding neighbours needs.
    """
    code = NumericFilter(low, high, threshold)
    if threshold > (high - low) / 2:
        raise SettingError(
            f"threshold={threshold} is more than half the range, where the paper's formula does not hold; choose "
            "a smaller threshold, or set bits",
            code="threshold-too-large",
        )
    bits = paper_bits(high - low, threshold, epsilon=epsilon, delta=delta)
    return replace(code, bits=bits + -bits % 8)


def paper_string_filter(
    *, edit_distance: int, hashes: int, collision: float, delta: float, mean_grams: float, q: int = 2
) -> StringFilter:
    """Return the text filter with the size from the paper's code, rounded up to whole bytes.

    Texts with ``mean_grams`` q-grams on average that are ``edit_distance`` apart then exceed the ``collision`` rate
    with probability below ``delta``.
    """
    code = StringFilter(q=q, hashes=hashes)
    validate_integer(edit_distance, "edit_distance", least=1, most=1 << 16)
    validate_number(collision, "collision", above=0, below=1)
    validate_number(delta, "delta", above=1e-9, below=1)
    validate_number(mean_grams, "mean_grams", above=0, below=1e9)
    tolerated = math.ceil(4 * edit_distance * hashes * collision) + 1
    bits = math.ceil(2 * edit_distance * hashes * mean_grams / (tolerated * delta))
    return replace(code, bits=bits + -bits % 8)
