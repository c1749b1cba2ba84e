"""What one committed step was."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Dict, Optional

from . import _library

STAGES = ("collect", "reduce", "vote", "update", "publish", "wait")


@dataclass(frozen=True)
class PathQuality:
    """How well what all nodes sent of one path was encoded: by the names of
    the metrics (ballast_exchange_*) and of `ballastctl job`.

    Measured over `sampled` elements, the same on all ranks. None: not measured
    in this step (it was skipped or loaded, nothing is quantized, metering is
    off, nothing was published yet), or not known; never 0.0 for that.
    relative_error: root mean square of the error over that of the values.
    clipped_share: of the sampled elements, cut off by range clip16.
    residual_norm: L2 of what encoding took from this node's gradients and adds
    to those of the next step; of gradients, with error feedback only.
    num_wider: tensors that crossed by a wider codec than the policy's.
    """

    sampled: int
    relative_error: Optional[float]
    clipped_share: Optional[float]
    residual_norm: Optional[float]
    num_wider: int

    @classmethod
    def of(cls, quality: _library.PathQualityStruct) -> "PathQuality":
        """From the C interface's struct."""
        return cls(sampled=quality.sampled,
                   relative_error=_known(quality.relative_error),
                   clipped_share=_known(quality.clipped_share),
                   residual_norm=_known(quality.residual_norm),
                   num_wider=quality.num_wider)


def _known(value: float) -> Optional[float]:
    return None if math.isnan(value) else value


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
    is quantized, and of a skipped step). The same on all ranks. quality has
    each of the two by itself, under "gradients" and "weights": PathQuality.
    fallbacks counts the tensors that crossed by a wider codec than the
    policy's, because their error was beyond max_relative_error, and the chunks
    of published weights that this node healed. The worst tensors by name are
    in `ballastctl job`.
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
    quality: Dict[str, PathQuality]

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
            loaded=bool(result.loaded),
            quality={"gradients": PathQuality.of(result.gradients),
                     "weights": PathQuality.of(result.weights)})
