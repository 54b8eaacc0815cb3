"""Memory a run needs (frontier-model.md, c3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def frontier_bytes(parameters: int, data_parallel: ArrayLike, word_bytes: float) -> NDArray[np.float64]:
    """Bytes over all accelerators: weights on every replica, four more words per parameter shared out.

    The optimizer state is sharded over DP (ZeRO-1, arXiv 1910.02054); activations are not charged.
    """
    replicas = np.asarray(data_parallel, dtype=np.float64)
    return parameters * word_bytes * replicas + 4.0 * parameters * word_bytes
