"""Arrays over the daemon's shared memory, by tensor name."""

from collections.abc import Mapping as MappingBase
from typing import Callable, Dict, Iterator, Mapping

import numpy as np

from . import _library, _names, _tensors, errors


class UnknownTensor(errors.InvalidArgument, KeyError):
    """A name that is not among the job's tensors."""

    __str__ = Exception.__str__


class _Memory:
    """Lends shared memory to numpy and keeps its handle alive."""

    def __init__(self, handle: _library.Handle, address: int,
                 spec: _tensors.TensorSpec, read_only: bool):
        self._handle = handle
        self.__array_interface__ = {
            "version": 3, "data": (address, read_only),
            "shape": spec.shape, "typestr": spec.numpy_dtype.str,
        }


class Views(MappingBase):
    """Name -> numpy array over shared memory; the same array each time."""

    def __init__(self, arrays: Dict[str, np.ndarray], kind: str,
                 absent: Mapping[str, str]):
        self._arrays = arrays
        self._kind = kind
        self._absent = absent

    def __getitem__(self, name: str) -> np.ndarray:
        is_text = isinstance(name, str)  # others may have no hash
        array = self._arrays.get(name) if is_text else None
        if array is not None:
            return array
        reason = self._absent.get(name) if is_text else None
        if reason is None:
            reason = "no tensor has this name"
            if self._arrays:
                reason += "; the nearest is %s" % _names.nearest(
                    name, self._arrays)
        raise UnknownTensor("%s[%s]: %s"
                            % (self._kind, _names.shown(name), reason))

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return "<%s of %d tensors>" % (self._kind, len(self))


class GatheredViews(Views):
    """The same, of weights that are not resident: what is not gathered is
    refused. An array kept from before shows whatever lies there."""

    def __init__(self, arrays: Dict[str, np.ndarray], kind: str,
                 absent: Mapping[str, str], is_held: Callable[[str], bool]):
        super().__init__(arrays, kind, absent)
        self._is_held = is_held

    def __getitem__(self, name: str) -> np.ndarray:
        array = super().__getitem__(name)
        if not self._is_held(name):
            raise errors.FailedPrecondition(
                "params[%s] is not resident: call gather([%s]) before and "
                "release([%s]) after its use"
                % ((_names.shown(name),) * 3))
        return array


def over_memory(handle: _library.Handle, address: int,
                spec: _tensors.TensorSpec, read_only: bool) -> np.ndarray:
    """An array over memory that lives as long as `handle`."""
    return np.asarray(_Memory(handle, address, spec, read_only))
