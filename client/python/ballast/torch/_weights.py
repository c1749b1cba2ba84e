"""Parameters over the published weights: a private mapping, its watch.

Each parameter gets a storage of its own over one MAP_PRIVATE mapping of the
segment that the daemon publishes into. Reading shows the published bits; a
write goes to a private page and can harm nobody, but that page would no
longer show what is published: both kinds of write are found (by ``_version``,
and by the kernel's page map, which also sees ``.data`` and numpy) and refused.
"""

import mmap
import os
from typing import Any, Callable, List, Optional

import numpy as np
import torch

from .. import errors
from ._parameters import Entry

_PAGE = mmap.PAGESIZE
_RECORD = 8  # bytes of /proc/self/pagemap per page
# By its highest three bits (present, swapped, file): a page of ours alone is
# present or swapped, and no file's.
_IS_PRIVATE = np.array([False, False, True, False, True, False, True, False])


class _Watched:
    """What a parameter must still be."""

    __slots__ = ("entry", "address", "version", "empty_view", "offset",
                 "size_bytes", "tensor_index")

    def __init__(self, entry: Entry, tensor_index: int, offset: int):
        parameter = entry.parameter
        self.entry = entry
        self.tensor_index = tensor_index
        self.offset = offset
        self.size_bytes = parameter.numel() * parameter.element_size()
        self.address = parameter.data_ptr()
        # Shares the version counter; an in-place operation on it touches no
        # memory.
        self.empty_view = parameter.detach().view(-1)[:0]
        self.version = parameter._version


class Weights:
    """The parameters of one session.

    `sees_silent_writes`: whether writes that PyTorch does not count are
    found (the kernel shows the page map).

    Args:
      session: an open ballast.Session with the entries' tensors, in order.
      explain: what to raise for an entry that is not as it was left.
    """

    def __init__(self, session: Any, entries: List[Entry],
                 explain: Callable[[Entry, bool], Exception]):
        self._explain = explain
        self._memory: Optional[mmap.mmap] = None
        places = [session.weights_place(entry.name) for entry in entries]
        if places[0].fd >= 0:
            self._memory = mmap.mmap(
                places[0].fd, places[0].segment_bytes, mmap.MAP_PRIVATE,
                mmap.PROT_READ | mmap.PROT_WRITE)
        self._base = self._address()
        self.sees_silent_writes = self._memory is not None and \
            _read_pagemap(self._base // _PAGE, 1) is not None
        with torch.no_grad():
            for entry, place in zip(entries, places):
                self._share(entry, place.offset)
        self._watched = [_Watched(entry, index, place.offset) for index,
                         (entry, place) in enumerate(zip(entries, places))]
        self._is_copy = False
        if session.step_is_given:
            self._copy(session)

    def _address(self) -> int:
        if self._memory is None:
            return 0
        return torch.frombuffer(self._memory, dtype=torch.uint8,
                                count=1).data_ptr()

    def _share(self, entry: Entry, offset: int) -> None:
        parameter = entry.parameter
        if parameter.numel() == 0:
            return
        view = torch.frombuffer(self._memory, dtype=parameter.dtype,
                                count=parameter.numel(), offset=offset)
        parameter.data = view.view(parameter.shape)

    def _copy(self, session: Any) -> None:
        """The step that is computed may commit meanwhile: until it has, the
        private pages show the weights that the session has kept for it."""
        self._is_copy = True
        for watched in self._watched:
            if watched.size_bytes:
                np.frombuffer(self._memory, np.uint8, watched.size_bytes,
                              watched.offset)[:] = session.params[
                                  watched.entry.name].reshape(-1).view(np.uint8)

    def check(self) -> None:
        """Refuses parameters that were edited or replaced."""
        self.check_places()
        for watched in self._watched:
            if watched.entry.parameter._version != watched.version:
                raise self._explain(watched.entry, False)

    def check_places(self) -> None:
        """Refuses parameters that were replaced."""
        for watched in self._watched:
            if watched.entry.parameter.data_ptr() != watched.address:
                raise self._explain(watched.entry, True)

    def check_pages(self) -> None:
        """Refuses writes that no version counts."""
        page = self._first_private_page()
        if page is None:
            return
        start, end = page * _PAGE, (page + 1) * _PAGE
        for watched in self._watched:
            if watched.offset < end and \
                    start < watched.offset + watched.size_bytes:
                raise self._explain(watched.entry, False)

    def _first_private_page(self) -> Optional[int]:
        if self._is_copy or not self.sees_silent_writes:
            return None
        return first_private_page(self._memory, self._base)

    def published(self) -> None:
        """New weights are there, or on their way: a backward through a graph
        of the old ones must fail with PyTorch's own error (I1)."""
        self.drop_copy()
        with torch.no_grad():
            for watched in self._watched:
                watched.empty_view.zero_()
                watched.version = watched.entry.parameter._version

    def drop_copy(self) -> None:
        """The step that it was for is over."""
        if self._is_copy and self._memory is not None:
            self._memory.madvise(mmap.MADV_DONTNEED)
        self._is_copy = False

    def drop_edits(self) -> None:
        """Private pages go; what is published shows again."""
        if self._memory is not None:
            self._memory.madvise(mmap.MADV_DONTNEED)
        self.published()

    def freeze(self) -> None:
        """From now on the parameters are ordinary memory with the bits of
        this moment."""
        if self._memory is not None:
            pages = np.frombuffer(self._memory, np.uint8)[::_PAGE]
            np.bitwise_or(pages, 0, out=pages)


def first_private_page(memory: Any, base: int) -> Optional[int]:
    """Of a private mapping at `base`, the first page that was written to;
    None also if there is no mapping or the kernel does not say."""
    if not isinstance(memory, mmap.mmap):
        return None
    data = _read_pagemap(base // _PAGE, -(-len(memory) // _PAGE))
    if data is None:
        return None
    is_private = _IS_PRIVATE[np.frombuffer(data, np.uint8)[7::8] >> 5]
    first = int(np.argmax(is_private))
    return first if is_private[first] else None


def _read_pagemap(start: int, pages: int) -> Optional[bytes]:
    """Records of this process's pages; None if the kernel shows none."""
    try:
        with open("/proc/self/pagemap", "rb", 0) as stream:
            data = os.pread(stream.fileno(), pages * _RECORD, start * _RECORD)
    except OSError:
        return None
    return data if len(data) == pages * _RECORD else None


def values(entries: List[Entry]) -> Any:
    """The `tensors` argument of a Session, over the parameters' memory."""
    result = {}
    for entry in entries:
        tensor = entry.parameter.detach().contiguous()
        if tensor.dtype == torch.bfloat16:
            array = tensor.view(torch.int16).numpy().view(np.uint16)
            result[entry.name] = (array, "bfloat16")
        else:
            result[entry.name] = tensor.numpy()
    return result


def refuse_edit(name: str) -> errors.FailedPrecondition:
    """For a published weight that was written to."""
    return errors.FailedPrecondition(
        "parameter %r was edited in place (or loaded by load_state_dict) "
        "after the optimizer was built: the daemon would not see it. Call "
        "optimizer.load_weights() on all ranks to make the model's values the "
        "job's new weights, or optimizer.drop_edits() to see the published "
        "ones again" % name)
