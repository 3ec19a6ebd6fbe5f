"""Format numbers, percentages, durations and byte counts for people."""

import math

from fedsim.registry import METRICS


def pluralise(value: int, thing: str) -> str:
    """Return a count with its noun in singular or plural.

    >>> pluralise(1, "record"), pluralise(4000, "record")
    ('1 record', '4,000 records')
    """
    return f"{value:,} {thing if value == 1 else thing + 's'}"


def format_number(value: float) -> str:
    """Return a number with three significant digits and no trailing zeros.

    >>> [format_number(number) for number in (0.0, 0.0123456, 4.5, 1234.56, 2.5e9, 3e-7)]
    ['0', '0.0123', '4.5', '1,235', '2.5e+09', '3e-07']
    """
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size and not 1e-4 <= size < 1e7:
        return f"{value:.3g}"
    if size >= 100:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"


def format_distance(value: float, metric: str) -> str:
    """Return a distance with the unit of the metric, if it has one.

    >>> format_distance(1234.5, "great-circle"), format_distance(0.25, "dice")
    ('1,234 m', '0.25')
    """
    return f"{format_number(value)} {metric_unit(metric) or ''}".rstrip()


def metric_unit(metric: str) -> str | None:
    """Return the unit of a metric's distances, if it has one.

    >>> metric_unit("great-circle"), metric_unit("dice")
    ('m', None)
    """
    unit: str | None = METRICS.detail(metric, "unit") if metric in METRICS else None
    return unit


def format_percent(share: float) -> str:
    """Return a share as a percentage.

    >>> [format_percent(share) for share in (0.0, 0.0004, 0.0423, 0.9996, 1.0)]
    ['0 %', '< 0.1 %', '4.2 %', '> 99.9 %', '100 %']
    """
    if 0.0 < share < 0.001:
        return "< 0.1 %"
    if 0.999 < share < 1.0:
        return "> 99.9 %"
    return f"{round(100.0 * share, 1):g} %"


def format_duration(seconds: float) -> str:
    """Return a duration in the units a person would use.

    >>> [format_duration(seconds) for seconds in (0.0042, 3.14, 75, 4000)]
    ['4 ms', '3.1 s', '1 min 15 s', '1 h 6 min']
    """
    if seconds < 1.0:
        return f"{1000.0 * seconds:.0f} ms"
    if seconds < 60.0:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def format_bytes(n_bytes: int) -> str:
    """Return a number of bytes in a readable unit.

    >>> format_bytes(2_560_000)
    '2.6 MB'
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:.1f} {unit}"
    return f"{n_bytes} bytes"
