"""What _gathered.py keeps of each parameter, and puts in place of a module's
dictionary of them and of a model's forward."""

import collections
from typing import Any, Callable

import numpy as np
import torch

from .. import errors
from ._parameters import Entry


class Lease(np.ndarray):
    """Memory of a gathered weight; somebody reads it as long as it lives."""


class Saved:
    """What autograd keeps of a weight for backward: where it lay."""

    __slots__ = ("part", "offset", "size", "stride", "version")

    def __init__(self, part: "Part", tensor: torch.Tensor, version: int):
        self.part = part
        self.offset = (tensor.data_ptr() - part.address) // \
            tensor.element_size()
        self.size = tuple(tensor.shape)
        self.stride = tensor.stride()
        self.version = version


class Part:
    """One parameter."""

    def __init__(self, entry: Entry, memory: Any, offset: int):
        parameter = entry.parameter
        self.entry = entry
        self.offset = offset
        self.size_bytes = parameter.numel() * parameter.element_size()
        self.leases = 0
        self.is_wanted = False  # asked for, perhaps not here yet
        self.present = parameter.data
        if self.size_bytes:
            self.present = torch.frombuffer(
                memory, dtype=parameter.dtype, count=parameter.numel(),
                offset=offset).view(parameter.shape)
        self.absent = torch.full((), float("nan"), dtype=parameter.dtype
                                 ).expand(parameter.shape)
        self.address = self.present.data_ptr()
        # Shares the version counter; an in-place operation on it touches no
        # memory.
        parameter.data = self.present
        self.empty_view = parameter.detach().view(-1)[:0]
        self.version = parameter._version
        self.hide()

    @property
    def is_shown(self) -> bool:
        return self.entry.parameter.data_ptr() == self.address

    def show(self) -> None:
        self.entry.parameter.data = self.present

    def hide(self) -> None:
        if self.size_bytes:
            self.entry.parameter.data = self.absent


def end_lease(part: Part) -> None:
    part.leases -= 1


class Looked(collections.OrderedDict):
    """A module's parameters: looking one up in a forward gathers it."""

    def __init__(self, parameters: Any, find: Callable[[], Any]):
        super().__init__()
        self._find = find
        for name, parameter in parameters.items():
            self[name] = parameter

    def __getitem__(self, name: Any) -> Any:
        parameter = super().__getitem__(name)
        gathered = self._find()
        return parameter if gathered is None else gathered._look(parameter)

    def get(self, name: Any, default: Any = None) -> Any:
        return self[name] if name in self else default

    def __reduce__(self) -> Any:
        return collections.OrderedDict, (list(self.items()),)


class Forward:
    """A model's forward, in which autograd saves places, not weights."""

    def __init__(self, find: Callable[[], Any], inner: Callable[..., Any]):
        self._find = find
        self._inner = inner

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        gathered = self._find()
        if gathered is None or gathered._is_over:
            raise errors.FailedPrecondition(
                "the weights of this model were given back when its job "
                "ended: copy them before, as in "
                "optimizer.session.state_dict()")
        gathered._begin()
        try:
            gathered._use_own()
            with torch.autograd.graph.saved_tensors_hooks(
                    gathered._pack, gathered._unpack):
                return self._inner(*arguments, **named)
        finally:
            gathered._end()

    def _refuse(self) -> Any:
        raise errors.FailedPrecondition(
            "this model cannot be copied or pickled: its weights are not "
            "resident; optimizer.session.state_dict() copies them")

    def __deepcopy__(self, memo: Any) -> Any:
        return self._refuse()

    def __reduce__(self) -> Any:
        return self._refuse()
