"""Random small frontier questions, and random layouts for them: most keep every rule, some break one."""

import math
from functools import lru_cache

import numpy as np

from planner.catalogue import load_accelerator
from planner.hardware import Accelerator
from planner.layout import FrontierLayout, Schedule
from planner.question import FrontierQuestion, Objective
from planner.spaces import Degrees, Space
from planner.workload import FrontierRun

AXES = ("tp_m", "tp_ff", "pp", "dp", "ep")
PRESETS = (
    "v100-sxm2",
    "a100-sxm-40gb",
    "h100-sxm",
    "h100-pcie",
    "h100-sxm-superpod",
    "b200-sxm",
    "mi300x",
    "tpu-v6e",
)


def prime_factors(n: int) -> list[int]:
    """Prime factors with multiplicity, ascending."""
    found, p = [], 2
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return found


@lru_cache(maxsize=10_000)
def divisors(n: int) -> list[int]:
    """Divisors by trial, ascending."""
    low = [x for x in range(1, math.isqrt(n) + 1) if n % x == 0]
    return sorted({*low, *(n // x for x in low)})


def random_run(rng: np.random.Generator, *, sparse: bool) -> FrontierRun:
    """A small run; every dimension has few prime factors."""
    d = int(rng.choice([192, 256, 384, 480, 640, 1024]))
    f = d * int(rng.choice([2, 4, 4, 5]))
    experts = int(rng.choice([2, 4, 6, 8, 12, 16])) if sparse else 1
    depth = int(rng.choice([1, 6, 12, 16, 24, 30]))
    batch = experts * int(rng.choice([256, 384, 480, 1024, 1536]))
    tokens = float(batch * rng.integers(10, 10**6))
    return FrontierRun(
        d_model=d,
        d_ff=f,
        layers=depth,
        experts=experts,
        batch_tokens=batch,
        tokens=tokens,
        flop=6 * 2 * d * f * depth * tokens,
    )


def random_accelerator(rng: np.random.Generator) -> Accelerator:
    """A preset with a network of its own, of one to four levels."""
    base = load_accelerator(str(rng.choice(PRESETS)))
    depth = int(rng.integers(1, 5))
    free = rng.random() < 0.2
    levels = []
    for k in range(depth):
        size = int(rng.choice([2, 3, 4, 6, 8])) if k < depth - 1 else None
        bandwidth = math.inf if free or rng.random() < 0.1 else float(10 ** rng.uniform(8, 12))
        latency = 0.0 if rng.random() < 0.3 else float(10 ** rng.uniform(-7, -5))
        levels.append({"name": f"l{k}", "size": size, "bandwidth": bandwidth, "latency": latency})
    # Written out so that every dictionary goes through the validation.
    fields = base.model_dump() | {"network": levels}
    return Accelerator.model_validate(fields)


def random_question(rng: np.random.Generator) -> FrontierQuestion:
    """A question without limits on memory or time; `limited` adds them."""
    paper = rng.random() < 0.3
    return FrontierQuestion(
        random_run(rng, sparse=rng.random() < 0.5),
        random_accelerator(rng),
        space=Space.PAPER if paper else Space.FULL,
        degrees=Degrees(str(rng.choice(list(Degrees)))),
        objective=Objective(str(rng.choice(list(Objective)))),
        deadline=None,
        accelerators=(1, int(rng.choice([512, 4096, 20000]))),
        overlap_data=bool(rng.random() < 0.3),
    )


def random_layout(rng: np.random.Generator, question: FrontierQuestion) -> FrontierLayout | None:
    """A layout that mostly keeps the rules; None if the draw leads nowhere.

    Network levels are filled from the inside with prime factors that the axes still have; the cluster ends at
    a random level.
    """
    run, fixed = question.run, question.accelerator.level_sizes
    shards = run.batch_tokens // run.experts
    factors = (run.d_model, run.d_ff, run.layers, shards, run.experts)
    left = {axis: prime_factors(n) for axis, n in zip(AXES, factors, strict=True)}
    if question.space is Space.PAPER or question.degrees is Degrees.POW2:
        left = {axis: [p for p in x if p == 2 or axis == "ep"] for axis, x in left.items()}
    elif question.degrees is Degrees.SMOOTH:
        left = {axis: [p for p in x if p <= 5 or axis == "ep"] for axis, x in left.items()}
    end = int(rng.integers(0, len(fixed) + 1))
    degrees: dict[str, list[int]] = {axis: [1] * (len(fixed) + 1) for axis in AXES}
    most = question.accelerators[1]

    def give(prime: int, k: int) -> bool:
        able = [axis for axis in AXES if prime in left[axis]]
        if not able:
            return False
        axis = able[rng.integers(len(able))]
        if question.space is Space.PAPER and "ep" in able and rng.random() < 0.8:
            axis = "ep"
        left[axis].remove(prime)
        degrees[axis][k] *= prime
        return True

    def used() -> int:
        return math.prod(math.prod(x) for x in degrees.values())

    for k in range(end + 1):
        if k < end:
            if not all(give(p, k) for p in prime_factors(fixed[k])):
                return None
            continue
        room = fixed[k] if k < len(fixed) else most // max(used(), 1)
        for _ in range(int(rng.integers(0, 14))):
            rest = sorted({p for x in left.values() for p in x})
            if not rest:
                break
            prime = int(rng.choice(rest))
            if math.prod(x[k] for x in degrees.values()) * prime > room:
                break
            give(prime, k)
        if question.space is Space.PAPER:
            for p in list(left["ep"]):
                left["ep"].remove(p)
                degrees["ep"][k] *= p
    pp, dp = math.prod(degrees["pp"]), math.prod(degrees["dp"])
    zero = bool(rng.random() < 0.3)
    least = (2 * pp if zero else pp) if rng.random() < 0.95 else 1
    counts = [m for m in divisors(shards // dp) if m >= least]
    if not counts:
        return None
    few = 4 if question.space is Space.PAPER and rng.random() < 0.9 else len(counts)
    whole = divisors(run.layers // pp) if run.layers % pp == 0 else [1]
    v = int(rng.choice(whole))
    if question.space is Space.PAPER and rng.random() < 0.9:
        v = whole[-1]
    if (zero or pp == 1) and rng.random() < 0.95:
        v = 1
    if zero and v != 1:
        return None
    return FrontierLayout(
        **{axis: tuple(x) for axis, x in degrees.items()},
        microbatches=int(counts[rng.integers(min(few, len(counts)))]),
        interleave=v,
        schedule=Schedule.ZERO_BUBBLE if zero else Schedule.ONE_F_ONE_B,
    )


def random_layouts(rng: np.random.Generator, question: FrontierQuestion, draws: int) -> list[FrontierLayout]:
    """Distinct layouts out of this many draws."""
    found = (random_layout(rng, question) for _ in range(draws))
    return list({x.model_dump_json(): x for x in found if x is not None}.values())
