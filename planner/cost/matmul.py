"""Time of a matrix multiplication on one accelerator under data-movement limits.

Source: arXiv 2411.01137, section 2 and its public program (frontier-model.md, c1). A weight matrix d1 x d2
is cut into tiles that fit a level of memory; traffic over each boundary follows from the tiles' shape.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.hardware import Accelerator

Floats = NDArray[np.float64]


class Shape(NamedTuple):
    """A weight matrix d1 x d2 times b columns (tokens); arrays that broadcast together."""

    d1: Floats
    d2: Floats
    columns: Floats
    word_bytes: float

    @property
    def weight_bytes(self) -> Floats:
        """W [B]."""
        return self.d1 * self.d2 * self.word_bytes


def _tiles(shape: Shape, tile_bytes: float) -> tuple[Floats, Floats]:
    """Rows r and columns c of tiles of at most `tile_bytes` (real numbers >= 1)."""
    words = shape.d1 * shape.d2
    per_tile = words / np.ceil(shape.weight_bytes / tile_bytes)
    height = np.maximum(np.minimum(shape.d1, np.sqrt(per_tile)), per_tile / shape.d2)
    return shape.d1 / height, shape.d2 * height / per_tile


def _boundary(
    shape: Shape, tile_bytes: float, units: int, *, mesh: bool, weight_gradient: bool
) -> tuple[Floats, Floats]:
    """Bytes over one boundary, and over the mesh between the units below it.

    `tile_bytes` is the capacity of one unit of the lower level, `units` how many hold tiles at once.
    """
    first = shape.d1 * shape.columns * shape.word_bytes
    second = shape.d2 * shape.columns * shape.word_bytes
    resident = 2 * shape.weight_bytes <= tile_bytes * units
    rows, cols = _tiles(shape, tile_bytes * units if mesh else tile_bytes)
    weights = np.where(resident, 0.0, shape.weight_bytes)
    if weight_gradient:
        traffic = 2 * weights + rows * second + cols * first
    else:
        traffic = weights + rows * second + (2 * cols - 1) * first
    if not mesh:
        return traffic, np.zeros_like(traffic)
    rows, cols = _tiles(shape, tile_bytes)
    over_mesh = np.where(rows > 1, rows * second, 0.0)
    if weight_gradient:
        over_mesh = over_mesh + np.where(cols > 1, cols * first, 0.0)
    else:
        over_mesh = over_mesh + 2 * (cols - 1) * first
    return traffic, over_mesh


def matmul_seconds(
    accelerator: Accelerator,
    d1: ArrayLike,
    d2: ArrayLike,
    columns: ArrayLike,
    *,
    weight_gradient: bool = False,
) -> Floats:
    """Time of one multiplication of a d1 x d2 weight matrix with `columns` vectors [s].

    Parameters
    ----------
    accelerator : Accelerator
        Arithmetic, memory and cache constants.
    d1, d2, columns : array_like
        Dimensions [words], [words], [tokens]; they broadcast. Real numbers are allowed.
    weight_gradient : bool
        The product that forms the weight gradient, instead of a forward or activation-gradient product.
    """
    a = accelerator
    first, second, tokens = (np.asarray(x, dtype=np.float64) for x in (d1, d2, columns))
    shape = Shape(first, second, tokens, a.word_bytes)
    register = a.usable_share * a.register_bytes_per_block
    per_unit = a.register_blocks_per_unit * register
    l2 = max(a.usable_share * a.l2_capacity, per_unit)
    hbm, _ = _boundary(shape, l2, 1, mesh=False, weight_gradient=weight_gradient)
    unit, mesh = _boundary(shape, per_unit, a.units, mesh=a.unit_network, weight_gradient=weight_gradient)
    inner, _ = _boundary(
        shape, register, a.register_blocks_per_unit * a.units, mesh=False, weight_gradient=weight_gradient
    )

    def padded(x: Floats) -> Floats:
        return np.ceil(x / a.matmul_padding) * a.matmul_padding

    arithmetic = 2 * padded(shape.d1) * padded(shape.d2) * padded(shape.columns) / a.sustained
    busiest = np.maximum(hbm / a.memory_bandwidth, (hbm + unit) / a.l2_bandwidth)
    busiest = np.maximum(busiest, (unit + mesh + inner) / a.shared_memory_bandwidth)
    return np.asarray(np.maximum(busiest, arithmetic) + a.matmul_overhead)


def block_seconds(
    accelerator: Accelerator, shard_d: ArrayLike, shard_f: ArrayLike, tokens: ArrayLike
) -> Floats:
    """Time of the six multiplications of one MLP block and microbatch, forward and backward [s].

    `shard_d` = d / TPm, `shard_f` = f / TPff [words]; `tokens` = nanobatch per expert [tokens].
    """
    seconds = np.zeros(())
    for d1, d2 in ((shard_f, shard_d), (shard_d, shard_f)):
        seconds = (
            seconds
            + 2 * matmul_seconds(accelerator, d1, d2, tokens)
            + matmul_seconds(accelerator, d1, d2, tokens, weight_gradient=True)
        )
    return np.asarray(seconds)
