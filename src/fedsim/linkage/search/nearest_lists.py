"""Lists of the nearest candidates of a query, updated candidate by candidate."""

from numba import njit

from fedsim.types import Floats, Integers


@njit(nogil=True, cache=True)
def insert_sorted(partner: Integers, distance: Floats, row: int, value: float) -> bool:
    """Insert into a list sorted by (distance, row) if it is near enough; rows must come in ascending order."""
    place = len(distance) - 1
    if value >= distance[place]:
        return False
    while place > 0 and distance[place - 1] > value:
        distance[place], partner[place] = distance[place - 1], partner[place - 1]
        place -= 1
    distance[place], partner[place] = value, row
    return True


@njit(nogil=True, cache=True)
def replace_worst(nearest: Floats, found: Integers, value: float, row: int) -> None:
    """Replace the first entry of a heap ordered by (distance, row), largest first."""
    place, size = 0, len(nearest)
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and (
            nearest[child + 1] > nearest[child]
            or (nearest[child + 1] == nearest[child] and found[child + 1] > found[child])
        ):
            child += 1
        if nearest[child] < value or (nearest[child] == value and found[child] < row):
            break
        nearest[place], found[place] = nearest[child], found[child]
        place = child
    nearest[place], found[place] = value, row


@njit(nogil=True, cache=True)
def merge_block(block: Floats, first: int, partner: Integers, distance: Floats) -> None:
    """Merge a block of distances into the list of every query."""
    for query in range(block.shape[0]):
        for place in range(block.shape[1]):
            if block[query, place] < distance[query, -1]:
                insert_sorted(partner[query], distance[query], first + place, block[query, place])
