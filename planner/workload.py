"""What is trained: the frontier model's stack of (sparse) MLP blocks."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from planner import scaling
from planner.errors import InputError
from planner.scaling import BatchLaw

#: Training compute the planner accepts [FLOP]; outside it no width of the grid comes near.
MIN_FLOP, MAX_FLOP = 1e18, 1e38
MIN_WIDTH, MAX_WIDTH = 256, 1 << 26


class FrontierRun(BaseModel):
    """One training run of L blocks of a two-matrix MLP, E copies each, one active per token.

    Source: arXiv 2411.01137 (frontier-model.md, a). No attention, no embeddings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    d_model: int = Field(ge=1, description="width d [features]")
    d_ff: int = Field(ge=1, description="hidden width f of the MLP [features]")
    layers: int = Field(ge=1, description="blocks L")
    experts: int = Field(ge=1, description="sparsity factor E: experts per block, one active per token")
    batch_tokens: int = Field(ge=1, description="batch size B [tokens]")
    tokens: float = Field(gt=0, description="training tokens D [tokens]")
    flop: float = Field(gt=0, description="training compute T = 6 P D / E [FLOP]")

    @property
    def parameters(self) -> int:
        """Total parameters P = 2 d f L E."""
        return 2 * self.d_model * self.d_ff * self.layers * self.experts

    @property
    def flop_per_token(self) -> float:
        """Forward and backward FLOP per token, 6 P / E [FLOP]."""
        return 6 * self.parameters / self.experts

    @property
    def batches(self) -> float:
        """Optimizer steps D / B."""
        return self.tokens / self.batch_tokens


def frontier_run(
    flop: float | None = None,
    *,
    d_model: int | None = None,
    sparse: bool = False,
    batch_law: BatchLaw = BatchLaw.DEFAULT,
) -> FrontierRun:
    """Shape a run from its compute, its width, or both.

    Parameters
    ----------
    flop : float, optional
        Training compute T [FLOP]. Given alone, the width is the compute-optimal one nearest in log FLOP;
        the tokens are set so that 6 P D / E is exactly `flop`.
    d_model : int, optional
        Width [features]. Given alone, the run is the published compute-optimal one of that width (D = 20 P).
    sparse : bool
        Mixture of experts by the paper's sparsity law instead of a dense stack.
    batch_law : BatchLaw
        Growth of the batch with T.

    Raises
    ------
    InputError
        Neither is given, or one is out of range.
    """
    if flop is None and d_model is None:
        raise InputError.of("flop", None, "give --flop (training compute) or --d-model (width), or both")
    problems: list[InputError] = []
    if flop is not None and not MIN_FLOP <= flop <= MAX_FLOP:
        problems.append(
            InputError.of("flop", flop, f"must be a number of FLOP from {MIN_FLOP:g} to {MAX_FLOP:g}")
        )
    if d_model is not None and not MIN_WIDTH <= d_model <= MAX_WIDTH:
        problems.append(
            InputError.of("d_model", d_model, f"must be a whole number from {MIN_WIDTH} to {MAX_WIDTH}")
        )
    if problems:
        raise InputError(p for error in problems for p in error.problems)
    if d_model is None:
        assert flop is not None
        d_model = scaling.nearest_width(flop, sparse=sparse)
    d_ff = scaling.FF_RATIO * d_model
    n_layers = scaling.layers(d_model, d_ff)
    n_experts = scaling.experts(d_model, d_ff, sparse=sparse)
    parameters = 2 * d_model * d_ff * n_layers * n_experts
    if flop is None:
        tokens: float = scaling.TOKENS_PER_PARAMETER * parameters
        flop = scaling.optimal_flop(d_model, sparse=sparse)
    else:
        tokens = flop * n_experts / (6 * parameters)
    return FrontierRun(
        d_model=d_model,
        d_ff=d_ff,
        layers=n_layers,
        experts=n_experts,
        batch_tokens=scaling.batch_tokens(flop, n_experts, batch_law),
        tokens=tokens,
        flop=flop,
    )
