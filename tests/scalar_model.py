"""The frontier model once more: one layout at a time, in plain loops, from the specification, not the code.

Crossings are counted on an explicit placement of stages and experts instead of by formula.
"""

import itertools
import math
from types import SimpleNamespace

from tests.samples import divisors

AXES = ("TPm", "TPff", "PP", "DP", "EP")


def tiles(d1, d2, word, capacity):
    """Rows and columns of the tiling of a d1 x d2 matrix into tiles of at most `capacity` bytes."""
    count = math.ceil(d1 * d2 * word / capacity)
    words = d1 * d2 / count
    height = max(min(d1, math.sqrt(words)), words / d2)
    return d1 / height, d2 * height / words


def traffic(d1, d2, b, word, capacity, units, *, mesh, gradient):
    """Bytes over a boundary and over the mesh below it."""
    weights, a1, a2 = d1 * d2 * word, d1 * b * word, d2 * b * word
    if 2 * weights <= capacity * units:
        weights = 0.0
    r, c = tiles(d1, d2, word, capacity * units if mesh else capacity)
    over = 2 * weights + r * a2 + c * a1 if gradient else weights + r * a2 + (2 * c - 1) * a1
    if not mesh:
        return over, 0.0
    r, c = tiles(d1, d2, word, capacity)
    inside = r * a2 if r > 1 else 0.0
    if not gradient:
        inside += 2 * (c - 1) * a1
    elif c > 1:
        inside += c * a1
    return over, inside


def matmul(a, d1, d2, b, *, gradient):
    """Seconds of one multiplication."""
    peak = a.units * a.flop_per_clock_per_unit * a.max_clock
    shared = a.shared_memory_bytes_per_clock_per_unit * a.units * a.sustained_share * a.max_clock
    block = a.usable_share * a.register_bytes_per_block
    per_unit = a.register_blocks_per_unit * block
    w = a.word_bytes
    x1, _ = traffic(
        d1, d2, b, w, max(a.usable_share * a.l2_capacity, per_unit), 1, mesh=False, gradient=gradient
    )
    x2, mesh = traffic(d1, d2, b, w, per_unit, a.units, mesh=a.unit_network, gradient=gradient)
    blocks = a.register_blocks_per_unit * a.units
    x3, _ = traffic(d1, d2, b, w, block, blocks, mesh=False, gradient=gradient)

    def pad(x):
        return math.ceil(x / a.matmul_padding) * a.matmul_padding

    return a.matmul_overhead + max(
        x1 / a.memory_bandwidth,
        (x1 + x2) / a.l2_bandwidth,
        (x2 + mesh + x3) / shared,
        2 * pad(d1) * pad(d2) * pad(b) / (a.sustained_share * peak),
    )


def block(a, sd, sf, b):
    """Seconds of the six multiplications of a block."""
    pairs = [(sf, sd), (sd, sf)]
    return sum(2 * matmul(a, *p, b, gradient=False) + matmul(a, *p, b, gradient=True) for p in pairs)


def place(index, degrees):
    """Position at each level, innermost first, of the index-th member of a group."""
    position = []
    for degree in degrees:
        index, here = divmod(index, degree)
        position.append(here)
    return position


def level_between(one, other, degrees):
    """Highest level at which two members differ; -1 if they are the same."""
    pair = zip(place(one, degrees), place(other, degrees), strict=True)
    return max((k for k, (x, y) in enumerate(pair) if x != y), default=-1)


def pipeline_interfaces(degrees, v, layers):
    """How many of the L - 1 layer interfaces cross each level, from the placement of every chunk."""
    stages = math.prod(degrees)
    counts = [0] * len(degrees)
    for chunk in range(stages * v - 1):
        level = level_between(chunk % stages, (chunk + 1) % stages, degrees)
        if level >= 0:
            counts[level] += 1
    assert sum(counts) <= layers - 1
    return counts


def expert_pairs(degrees):
    """Share of pairs of experts (uniform routing) that lie across each level."""
    n = math.prod(degrees)
    counts = [0] * len(degrees)
    for one, other in itertools.product(range(n), repeat=2):
        level = level_between(one, other, degrees)
        if level >= 0:
            counts[level] += 1
    return [c / n**2 for c in counts]


def highest_used(degrees):
    """Highest level with a degree above 1; -1 if there is none."""
    return max((k for k, d in enumerate(degrees) if d > 1), default=-1)


def higher_of(first, second):
    """Distribution of the higher of two independent levels, each without its share of no crossing (-1)."""
    out = [0.0] * len(first)
    full = [[1 - sum(x), *x] for x in (first, second)]
    for (i, p), (j, q) in itertools.product(*(enumerate(x) for x in full)):
        if max(i, j) > 0:
            out[max(i, j) - 1] += p * q
    return out


def cost(run, a, layout, *, overlap_data=False):
    """Itemised seconds per batch, and utilization."""
    d, f, depth, experts, batch = run.d_model, run.d_ff, run.layers, run.experts, run.batch_tokens
    w, levels = a.word_bytes, range(len(a.network))
    per_level = dict(zip(AXES, (layout.tp_m, layout.tp_ff, layout.pp, layout.dp, layout.ep), strict=True))
    total = {axis: math.prod(x) for axis, x in per_level.items()}
    n = math.prod(total.values())
    parameters = 2 * d * f * depth * experts
    peak = a.units * a.flop_per_clock_per_unit * a.max_clock
    v, m, zero = layout.interleave, layout.microbatches, layout.schedule.value == "zero-bubble"

    def link(k):
        return w / (n * a.network[k].bandwidth)

    def halves(axis, k):
        return (per_level[axis][k] - 1) * math.prod(per_level[axis][k + 1 :])

    def active(axis, k):
        return 1 if per_level[axis][k] > 1 else 0

    columns = batch / (total["DP"] * m * experts)
    six = block(a, d / total["TPm"], f / total["TPff"], columns)
    arithmetic = depth / total["PP"] * experts / total["EP"] * m * six
    tensor = max(4 * depth * batch * link(k) * (halves("TPm", k) * f + halves("TPff", k) * d) for k in levels)
    data = max(2 * halves("DP", k) * parameters * link(k) for k in levels)
    tensor_latency = sum(
        4 * depth * a.network[k].latency * (active("TPm", k) + active("TPff", k)) for k in levels
    )
    data_latency = sum(2 * a.network[k].latency * active("DP", k) for k in levels)
    point = point_latency = 0.0
    if depth > 1:
        pipe = [c / (depth - 1) for c in pipeline_interfaces(layout.pp, v, depth)]
        worst = [float(k == highest_used(layout.ep)) for k in levels]
        mean = [x - y for x, y in _neighbours(layout.ep)]
        interfaces = 2 * (depth - 1)
        point = sum(p * interfaces * batch * d * link(k) for k, p in enumerate(higher_of(pipe, mean)))
        point_latency = sum(
            p * interfaces * a.network[k].latency for k, p in enumerate(higher_of(pipe, worst))
        )
    flow = max(arithmetic, tensor + point)
    bubble = 1.0 if zero else 1 + (total["PP"] - 1) / (v * m)
    pipe_time = flow * bubble + (0.0 if zero else tensor_latency + point_latency)
    step = (max(pipe_time, data) if overlap_data else pipe_time + data) + data_latency
    return SimpleNamespace(
        matmul=arithmetic,
        tensor=tensor,
        point_to_point=point,
        tensor_latency=tensor_latency,
        point_to_point_latency=point_latency,
        data=data,
        data_latency=data_latency,
        flow=flow,
        bubble=bubble,
        pipe=pipe_time,
        batch=step,
        train=run.tokens / batch * step,
        utilization=6 * parameters / experts * batch / (n * peak * step),
        memory_needed=parameters * w * total["DP"] + 4 * parameters * w,
        memory_available=n * a.memory_capacity,
    )


def _neighbours(degrees):
    """(1 / EP_{>k}, 1 / EP_{>=k}) of each level."""
    return [(1 / math.prod(degrees[k + 1 :]), 1 / math.prod(degrees[k:])) for k in range(len(degrees))]


def fills_levels(sizes, fixed):
    """Whether level sizes are those of a cluster: full up to some level, a part of it, nothing above.

    Where a level's size divides what is left, the level is full.
    """
    rest = math.prod(sizes)
    for size, full in zip(sizes, fixed, strict=False):
        expected = full if rest % full == 0 else rest
        if rest % full and rest > full:
            return False
        if size != expected:
            return False
        rest //= expected
    return sizes[-1] == rest


def keeps_rules(question, layout):
    """Whether a layout belongs to the question's space, limits apart (frontier-model.md c4, e)."""
    run, a = question.run, question.accelerator
    total = {
        axis: math.prod(x)
        for axis, x in zip(AXES, (layout.tp_m, layout.tp_ff, layout.pp, layout.dp, layout.ep), strict=True)
    }
    n, m, v = math.prod(total.values()), layout.microbatches, layout.interleave
    pp, dp, depth, experts = total["PP"], total["DP"], run.layers, run.experts
    zero = layout.schedule.value == "zero-bubble"
    sizes = [
        math.prod(x) for x in zip(layout.tp_m, layout.tp_ff, layout.pp, layout.dp, layout.ep, strict=True)
    ]
    fixed = [level.size for level in a.network if level.size is not None]
    shards = run.batch_tokens // experts
    rules = [
        run.d_model % total["TPm"] == 0,
        run.d_ff % total["TPff"] == 0,
        depth % (pp * v) == 0,
        shards % (dp * m) == 0,
        experts % total["EP"] == 0,
        m >= (2 * pp if zero else pp),
        v == 1 if zero or pp == 1 else True,
        fills_levels(sizes, fixed),
        question.accelerators[0] <= n <= question.accelerators[1],
    ]
    if question.space.value == "paper":
        tp = total["TPm"] * total["TPff"]
        root = int(math.sqrt(tp))
        larger = [x for x in divisors(shards // dp) if x >= (2 * pp if zero else pp)] if shards >= dp else []
        ratio = n / experts
        rules += [
            ratio == int(ratio) and bin(int(ratio)).count("1") == 1,
            total["EP"] == math.gcd(n, experts),
            root <= total["TPff"] <= 4 * root,
            zero or v == (depth // pp if pp > 1 else 1),
            m in larger[: 1 if zero else 4],
        ]
    elif question.degrees.value != "any":
        primes = (2,) if question.degrees.value == "pow2" else (2, 3, 5)
        for axis in ("TPm", "TPff", "PP", "DP"):
            rest = total[axis]
            for p in primes:
                while rest % p == 0:
                    rest //= p
            rules.append(rest == 1)
    return all(rules)
