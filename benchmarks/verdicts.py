"""What measured cases say of the bars: which are met, which are missed, where another provider is faster."""

import statistics
from collections.abc import Iterable
from math import prod

from . import bars
from .cases import SCANS, is_copy
from .results import OURS, Case, Key, best_peer, name_of, speedup, time_of

OF_NORMS = ("rowwise", "channels")  # parts without reductions
Miss = tuple[Key | None, str]  # None: of several cases together


def verdict(key: Key, case: Case) -> str:
    """ "under", "met" or "goal"; empty where there is no bar or no measurement."""
    pair = bars.pair_of(*key[2:])
    if not pair or not time_of(case, OURS):
        return ""
    fraction = case[OURS]["fraction"]
    return "under" if fraction < pair[0] else "goal" if fraction >= pair[1] else "met"


def misses(cases: dict[Key, Case]) -> list[Miss]:
    """Of each bar of bars.py that one GPU misses. What was not measured is no miss; what failed is one."""
    found: list[Miss] = []
    for key, case in cases.items():
        if time_of(case, OURS):
            found += [(key, said) for said in _of_case(key, case, cases)]
        elif OURS in case:
            found.append((key, case[OURS]["note"]))
    large = {key: case for key, case in cases.items() if prod(key[4]) >= bars.PEERS_FROM}
    scans = list(_speedups(case for key, case in large.items() if key[2] in SCANS))
    if scans and statistics.median(scans) < bars.MEDIAN_SPEEDUP:
        said = f"median speedup {statistics.median(scans):.3f}, under the bar of {bars.MEDIAN_SPEEDUP}"
        found.append((None, f"all scans: {said}"))
    rowwise = list(_speedups(case for key, case in large.items() if key[1] == "rowwise"))
    if rowwise and statistics.geometric_mean(rowwise) < bars.ROWWISE_SPEEDUP:
        mean = statistics.geometric_mean(rowwise)
        said = f"mean speedup {mean:.3f}, under the bar of {bars.ROWWISE_SPEEDUP}"
        found.append((None, f"softmax, norms and losses: {said}"))
    reductions = list(_speedups(c for key, c in large.items() if key[2] not in SCANS and key[1] not in OF_NORMS))
    if reductions and statistics.geometric_mean(reductions) < bars.REDUCTIONS_SPEEDUP:
        mean = statistics.geometric_mean(reductions)
        said = f"mean speedup {mean:.3f}, under the bar of {bars.REDUCTIONS_SPEEDUP}"
        found.append((None, f"all reductions: {said}"))
    return found


def missed(cases: dict[Key, Case]) -> list[str]:
    """A line for each of them."""
    return [said if key is None else f"{name_of(key)}: {said}" for key, said in misses(cases)]


def _speedups(cases: Iterable[Case]) -> list[float]:
    return [times for times in map(speedup, cases) if times]


def _of_case(key: Key, case: Case, cases: dict[Key, Case]) -> Iterable[str]:
    _, part, op, dtype, shape, dim, form = key
    ours, fraction = case[OURS]["p50_ms"], case[OURS]["fraction"]
    pair, floor = bars.pair_of(op, dtype, shape, dim, form), bars.floor_of(op, dtype, shape, dim, form)
    under = [f"under the bar of {pair[0]}"] if pair and fraction < pair[0] else []
    under += [f"under the floor of {floor}"] if floor and fraction < floor else []
    if under:
        yield f"{fraction:.4f} of the {'copy' if is_copy(part, op) else 'read'}, {' and '.join(under)}"
    plain = time_of(cases.get((*key[:-1], ""), {}), OURS)
    if form in ("reverse", "exclusive") and plain and ours > bars.DIRECTIONS * plain:
        yield f"{ours / plain:.3f} times plain {op}'s, over {bars.DIRECTIONS}"
    peer = best_peer(case)
    small = op not in SCANS and part not in OF_NORMS and bars.is_small_batch(shape, dim)
    allowed = bars.SMALL_BATCH if small else bars.PEERS if prod(shape) >= bars.PEERS_FROM else None
    if peer and allowed and ours > allowed * peer[1]:
        yield f"{ours / peer[1]:.3f} times {peer[0]}'s, over {allowed}"
    cubs = [ms for ms in (time_of(case, "cub"), time_of(case, "cub float32")) if ms is not None]
    if part == "small" and len(shape) == 1 and cubs:
        yield from _beside_cub(op, shape[0], ours / min(cubs))


def _beside_cub(op: str, n: int, ratio: float) -> Iterable[str]:
    """Of one dim, in the part of short calls."""
    if op not in SCANS:
        if ratio > bars.SHORT_REDUCTIONS:
            yield f"{ratio:.3f} times CUB's, over {bars.SHORT_REDUCTIONS}"
    elif op == "cumsum":
        allowed = bars.SMALL.get(n)
        if allowed and ratio > allowed:
            yield f"{ratio:.3f} times CUB's, over {allowed}"
        elif n >= bars.SMALL_FASTER_FROM and ratio >= 1:
            yield f"{ratio:.3f} times CUB's, not faster"
