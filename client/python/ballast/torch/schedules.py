"""DeepSpeed's warm-up schedules as PyTorch schedulers."""

import math
from typing import Any, Dict, List

import torch

_Base = getattr(torch.optim.lr_scheduler, "LRScheduler", None) or \
    torch.optim.lr_scheduler._LRScheduler


class Warmup(_Base):  # type: ignore[misc,valid-type]
    """WarmupLR, WarmupDecayLR or WarmupCosineLR, with DeepSpeed's numbers:
    the first step still has the schedule's lowest rate.

    Args:
      kind: the name in the configuration.
      params: all of its parameters (deepspeed.SCHEDULES has the defaults).
    """

    def __init__(self, optimizer: Any, kind: str, params: Dict[str, Any]):
        self.kind = kind
        self.params = dict(params)
        super().__init__(optimizer)

    def get_lr(self) -> List[float]:
        rates = self.base_lrs
        if self.kind == "WarmupCosineLR":
            return [rate * self._cosine() for rate in rates]
        low, high = self.params["warmup_min_lr"], self.params["warmup_max_lr"]
        if high is None:
            high = rates[0]
        return [low + (high - low) * self._gamma() for _ in rates]

    def _warm(self, done: int) -> float:
        """From 0 to 1 over the warm-up; 1 at its end."""
        steps = max(2, self.params["warmup_num_steps"])
        if self.params["warmup_type"] == "log":
            return math.log(done + 1) / math.log(steps)
        return done / steps

    def _gamma(self) -> float:
        done = self.last_epoch - 1  # -1 before the first step
        steps = max(2, self.params["warmup_num_steps"])
        if done < 0:
            return 0.0
        if done < steps:
            return self._warm(done)
        if self.kind == "WarmupLR":
            return 1.0
        total = self.params["total_num_steps"]
        return max(0.0, (total - done) / max(1.0, total - steps))

    def _cosine(self) -> float:
        done = self.last_epoch - 1
        steps = max(2, self.params["warmup_num_steps"])
        if done < 0:
            return 0.0
        if done < steps:
            low = self.params["warmup_min_ratio"]
            return low + self._warm(done) * (1.0 - low)
        total = max(1, self.params["total_num_steps"] - steps)
        progress = min(1.0, (done - steps + 1) / total)
        low = self.params["cos_min_ratio"]
        return max(0.0, low + (1.0 - low)
                   * (1 + math.cos(math.pi * progress)) / 2)
