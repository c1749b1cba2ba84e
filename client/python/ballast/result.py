"""What one committed step was."""

from dataclasses import asdict, dataclass
from typing import Any, Dict

from . import _library

STAGES = ("collect", "reduce", "vote", "update", "publish", "wait")


@dataclass(frozen=True)
class StepResult:
    """What one committed step was. Times in seconds, sizes in bytes.

    grad_norm is the global norm before clipping, clip_factor what clipping
    multiplied the gradient with (1.0: nothing). skipped: a gradient was not
    finite, so no weight changed. loaded: the weights are those of
    load_weights(). lr is that of param group 0. seconds runs
    from this node's first push to the last published bucket; with
    step(wait=False) it and stage_seconds are as of the commit.
    relative_error says how far what all nodes sent is from what was meant, as
    root mean squares over sampled cells: of this step's gradients, or of the
    weights that they were computed from, whichever is worse (0.0 where nothing
    is quantized, and of a skipped step). The same on all ranks. fallbacks
    counts the tensors that crossed by a wider codec than the policy's, because
    their error was beyond max_relative_error, and the chunks of published
    weights that this node healed. It is the only error figure here: shares
    of clipped elements, worst tensors and the norm of what error feedback
    carries over are in `ballastctl job` and the metrics.
    """

    step: int
    weight_version: int
    optimizer_step: int
    grad_norm: float
    clip_factor: float
    skipped: bool
    lr: float
    wire_bytes_sent: int
    wire_bytes_received: int
    payload_bytes: int
    seconds: float
    stage_seconds: Dict[str, float]
    fallbacks: int
    relative_error: float
    loaded: bool

    def as_dict(self) -> Dict[str, Any]:
        """All fields, ready for json.dumps."""
        return asdict(self)

    @classmethod
    def of(cls, result: _library.ResultStruct) -> "StepResult":
        """From the C interface's struct."""
        return cls(
            step=result.step, weight_version=result.weight_version,
            optimizer_step=result.optimizer_step, grad_norm=result.grad_norm,
            clip_factor=result.clip_factor, skipped=bool(result.skipped),
            lr=result.lr, wire_bytes_sent=result.wire_bytes_sent,
            wire_bytes_received=result.wire_bytes_received,
            payload_bytes=result.payload_bytes, seconds=result.seconds,
            stage_seconds=dict(zip(STAGES, result.stage_seconds)),
            fallbacks=result.fallbacks, relative_error=result.relative_error,
            loaded=bool(result.loaded))
