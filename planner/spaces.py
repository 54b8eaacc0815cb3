"""Which degrees and cluster sizes a question ranges over (frontier-model.md, e)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import product


class Space(StrEnum):
    """Published search rules, or all of them lifted."""

    PAPER = "paper"
    FULL = "full"


class Degrees(StrEnum):
    """Allowed degrees of tensor, pipeline and data parallelism (expert parallelism divides E in any case)."""

    POW2 = "pow2"
    SMOOTH = "smooth"
    ANY = "any"


#: Primes a degree may have; None for all.
_PRIMES: dict[Degrees, tuple[int, ...] | None] = {
    Degrees.POW2: (2,),
    Degrees.SMOOTH: (2, 3, 5),
    Degrees.ANY: None,
}


def factorize(n: int) -> dict[int, int]:
    """Prime exponents of n >= 1, by trial division: what is factorized here has small primes."""
    exponents: dict[int, int] = {}
    p = 2
    while p * p <= n:
        while n % p == 0:
            exponents[p] = exponents.get(p, 0) + 1
            n //= p
        p += 1
    if n > 1:
        exponents[n] = exponents.get(n, 0) + 1
    return exponents


def divisors(n: int, degrees: Degrees = Degrees.ANY) -> list[int]:
    """Divisors of n with allowed primes only, ascending."""
    primes = _PRIMES[degrees]
    exponents = {p: e for p, e in factorize(n).items() if primes is None or p in primes}
    powers = ([p**i for i in range(e + 1)] for p, e in exponents.items())
    return sorted(math.prod(x) for x in product(*powers))


def level_sizes(accelerators: int, fixed: Sequence[int]) -> tuple[int, ...] | None:
    """Members per network level of a cluster, innermost first; None if it fills no whole levels.

    Inner levels have the sizes `fixed`; a cluster smaller than a level makes up a part of it.
    """
    rest, sizes = accelerators, []
    for size in fixed:
        if rest % size == 0:
            here = size
        elif rest < size:
            here = rest
        else:
            return None
        sizes.append(here)
        rest //= here
    return (*sizes, rest)


def products(factors: Iterable[int], limit: int) -> list[int]:
    """Every product of primes up to `limit` that the largest `factors` allow, ascending."""
    exponents: dict[int, int] = {}
    for factor in factors:
        for p, e in factorize(factor).items():
            exponents[p] = exponents.get(p, 0) + e
    found = [1]
    for p, e in exponents.items():
        powers = [p**i for i in range(e + 1) if p**i <= limit]
        found = [x * y for x in found for y in powers if x * y <= limit]
    return sorted(found)


def splits(total: int, inner: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Ways to split a degree over the levels: inner factors from `inner`, the outermost takes the rest."""
    return [
        (*choice, total // math.prod(choice)) for choice in product(*inner) if total % math.prod(choice) == 0
    ]
