"""Gradients as views of this rank's gradient segment."""

from typing import Any, Dict, List, Optional

import numpy as np
import torch

from .. import errors
from ._parameters import Entry


def _over(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class Gradients:
    """One view per trainable parameter. `copies` counts gradients that were
    made elsewhere (after zero_grad(set_to_none=True)) and copied in."""

    def __init__(self, session: Any, entries: List[Entry]):
        self.copies = 0
        self._views: Dict[str, torch.Tensor] = {}
        self._pushed: Dict[str, int] = {}  # name -> version at the push
        for entry in entries:
            if entry.is_trainable:
                view = _over(session.grads[entry.name], entry.parameter.dtype)
                self._views[entry.name] = view
                self._adopt(entry)

    def _adopt(self, entry: Entry) -> None:
        """A gradient that was there before counts."""
        given = entry.parameter.grad
        view = self._views[entry.name]
        if given is None:
            view.zero_()
        else:
            view.copy_(_dense(entry, given))
        entry.parameter.grad = view

    def collect(self, entry: Entry, loss_scale: float) -> None:
        """Brings the gradient into the segment, unscaled, ready to be pushed:
        zero for a parameter that was not used."""
        view = self._views[entry.name]
        grad = entry.parameter.grad
        with torch.no_grad():
            if grad is None:
                view.zero_()
            elif grad is not view:
                view.copy_(_dense(entry, grad))
                self.copies += 1
            if loss_scale != 1.0:
                view.mul_(1.0 / loss_scale)
        if grad is not view:
            entry.parameter.grad = view
        self._pushed[entry.name] = view._version

    def is_pushed(self, entry: Entry) -> bool:
        return entry.name in self._pushed

    @property
    def any_pushed(self) -> bool:
        """Of the step that is computed."""
        return bool(self._pushed)

    def check_pushed(self, entries: List[Entry]) -> None:
        """Refuses gradients that were edited after they were handed over."""
        for entry in entries:
            version = self._pushed.get(entry.name)
            if version is None:
                continue
            view = self._views[entry.name]
            if entry.parameter.grad is view and view._version == version:
                continue
            raise errors.FailedPrecondition(
                "the gradient of %r was changed after it was pushed: the "
                "daemon has the earlier one. Clip with gradient_clipping= "
                "and optimizer.clip_grad_norm_() instead of "
                "torch.nn.utils.clip_grad_norm_, give the loss scale by "
                "optimizer.loss_scale instead of scaler.unscale_, and call "
                "optimizer.zero_grad() only after step()" % entry.name)

    def forget_pushes(self) -> None:
        """The step is over, or void."""
        self._pushed.clear()

    def zero(self, entries: List[Entry], set_to_none: bool) -> None:
        """zero_grad(): in place, or as PyTorch's default has it."""
        with torch.no_grad():
            for entry in entries:
                view: Optional[torch.Tensor] = self._views.get(entry.name)
                if view is None:
                    continue
                if set_to_none:
                    entry.parameter.grad = None
                else:
                    view.zero_()
                    entry.parameter.grad = view


def _dense(entry: Entry, grad: torch.Tensor) -> torch.Tensor:
    if grad.layout != torch.strided:
        raise errors.InvalidArgument(
            "the gradient of %r is %s: only dense ones can be pushed; give "
            "the layer sparse=False" % (entry.name, grad.layout))
    return grad
