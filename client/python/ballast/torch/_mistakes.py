"""What users do by mistake, told so that they find it."""

import gc
import sys
from typing import Any, Iterable, Optional

import torch

from .. import _options, errors
from . import _weights
from ._parameters import Entry


def _ddp_class() -> Optional[type]:
    """DistributedDataParallel, if anybody could have wrapped with it."""
    module = sys.modules.get("torch.nn.parallel.distributed")
    distributed = getattr(torch, "distributed", None)
    if module is None or distributed is None or \
            not distributed.is_available() or \
            not distributed.is_initialized():
        return None
    return getattr(module, "DistributedDataParallel", None)


def check_not_ddp(model: Any, entries: Iterable[Entry]) -> None:
    """Refuses a model that DDP averages as well. Looks at every object, so
    it is for the start and for errors."""
    ddp = _ddp_class()
    if ddp is None:
        return
    mine = {id(entry.parameter) for entry in entries}
    wrappers = [model] if isinstance(model, ddp) else [
        thing for thing in gc.get_objects() if isinstance(thing, ddp)]
    for wrapper in wrappers:
        if any(id(parameter) in mine for parameter in wrapper.parameters()):
            raise errors.FailedPrecondition(
                "the model is also wrapped in DistributedDataParallel: both "
                "would average the gradients, and DDP would write to the "
                "published weights. Use the model without DDP")


def edited(model: Any, entries: Iterable[Entry], entry: Entry,
           is_replaced: bool, was: "Shape") -> Exception:
    """Why a parameter is not as the optimizer left it."""
    try:
        check_not_ddp(model, entries)
    except errors.FailedPrecondition as error:
        return error
    if not is_replaced:
        return _weights.refuse_edit(entry.name)
    now = Shape(entry.parameter)
    change = now.change_from(was)
    return errors.FailedPrecondition(
        "parameter %r was given other memory after the optimizer was built "
        "(%s): model.to(), .half(), .float(), channels_last and assignments "
        "to .data must come before it" % (entry.name, change))


class Shape:
    """What conversions change of a tensor."""

    def __init__(self, tensor: torch.Tensor):
        self.dtype = tensor.dtype
        self.device = tensor.device
        self.shape = tuple(tensor.shape)
        self.stride = tensor.stride()

    def change_from(self, was: "Shape") -> str:
        for what in ("dtype", "device", "shape", "stride"):
            then, now = getattr(was, what), getattr(self, what)
            if then != now:
                return "%s %s then, %s now" % (what, then, now)
        return "same shape and dtype"


def check_requires_grad(entries: Iterable[Entry]) -> None:
    for entry in entries:
        if entry.group >= 0 and \
                entry.parameter.requires_grad != entry.is_trainable:
            raise errors.FailedPrecondition(
                "requires_grad of parameter %r was %s when the optimizer was "
                "built and is %s now: what is trained cannot change during a "
                "job. Set it before, or build another optimizer (close() this "
                "one first)" % (entry.name, entry.is_trainable,
                                entry.parameter.requires_grad))


def check_still_in(model: torch.nn.Module, entries: Iterable[Entry]) -> None:
    """Refuses a model whose parameters were replaced by other objects."""
    mine = {id(entry.parameter) for entry in entries}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in mine:
            raise errors.FailedPrecondition(
                "parameter %r of the model is not the one that the optimizer "
                "was built with: a layer was added or replaced since. Change "
                "the model first, then build the optimizer" % name)


def norm_of_step(max_norm: float, clipping: float) -> Optional[float]:
    """What clip_grad_norm_(max_norm) hands over with the step; None: the
    job's own clipping is meant."""
    if max_norm == float("inf"):
        if clipping:
            raise errors.FailedPrecondition(
                "clip_grad_norm_(inf): a job with gradient_clipping=%g clips "
                "each step; build the optimizer without it to clip only some"
                % clipping)
        return None
    return None if clipping and max_norm == clipping else \
        _options.norm(max_norm)


def check_between_steps(is_pending: bool, any_pushed: bool) -> None:
    """For load_weights()."""
    if is_pending:
        raise errors.FailedPrecondition(
            "load_weights() while a step waits for its commit: repeat step() "
            "first")
    if any_pushed:
        raise errors.FailedPrecondition(
            "load_weights() after gradients were pushed: call step() first")


def restarted_within_steps() -> Exception:
    return errors.FailedPrecondition(
        "load_weights(restart=True) within steps(): the job counts from 1 "
        "again: leave the loop and begin another")
