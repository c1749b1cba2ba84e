"""Parameters whose weights are not resident: gathered before use, given back
after, forward and backward, as ZeRO-3 does.

    forward   a module's pre-hook gathers its own parameters, its hook gives
              them back; the next module's are asked for meanwhile
    backward  what autograd saved of a parameter is only where it lay: it is
              gathered again when a backward function takes it, and given back
              when that function has let go of it

A parameter that is not here is a NaN of its shape that takes no memory: who
uses it by a way that is not seen gets NaN, never zeros or old weights.
"""

import collections
import contextlib
import mmap
import time
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional

import numpy as np
import torch

from .. import errors
from . import _weights
from ._gathered_parts import Forward, Lease, Looked, Part, Saved, end_lease
from ._parameters import Entry

# Seconds in which other workers of the node may make room; what never fits is
# refused after them.
_PATIENCE = 30.0


class Gathered:
    """The parameters of one session whose weights are not resident; stands
    where _weights.Weights does.

    Args:
      session: an open ballast.Session with the entries' tensors, in order.
      explain: what to raise for an entry that is not as it was left.
      cache_bytes: of weights that are kept after their use, as long as no
        step has ended.
    """

    def __init__(self, session: Any, entries: List[Entry],
                 model: torch.nn.Module,
                 explain: Callable[[Entry, bool], Exception],
                 cache_bytes: int):
        self._session = session
        self._explain = explain
        self._cache_bytes = cache_bytes
        self._early: List[Part] = []  # asked for before their use, last
        self._is_over = False
        self.gathers = 0  # that were waited for
        self.prefetches = 0  # that were asked for before they were needed
        self.waits_for_room = 0  # of what other workers of the node hold
        places = [session.weights_place(entry.name) for entry in entries]
        self._memory: Any = bytearray()
        if places[0].fd >= 0:
            self._memory = mmap.mmap(
                places[0].fd, places[0].segment_bytes, mmap.MAP_PRIVATE,
                mmap.PROT_READ | mmap.PROT_WRITE)
        self._base = 0
        if isinstance(self._memory, mmap.mmap):
            self._base = torch.frombuffer(self._memory, dtype=torch.uint8,
                                          count=1).data_ptr()
        with torch.no_grad():
            self._parts = [Part(entry, self._memory, place.offset)
                           for entry, place in zip(entries, places)]
        self._by_parameter = {id(p.entry.parameter): p for p in self._parts}
        self._starts = sorted((p.address, p.address + p.size_bytes, i)
                              for i, p in enumerate(self._parts)
                              if p.size_bytes)
        # Wanted parts, the one that was used last at the end.
        self._recent: "collections.OrderedDict[int, Part]" = \
            collections.OrderedDict()
        self._order: List[torch.nn.Module] = []  # of the last forward
        self._next: Dict[int, List[Part]] = {}  # by module: of the next one
        # By part: which one backward took after it, and the last one.
        self._following: Dict[int, Part] = {}
        self._taken: Optional[Part] = None
        self._running: List[List[Part]] = []  # forwards under way
        self._handles: List[Any] = []
        self._own = self._owned(model)
        self._attach(model)
        model.forward = Forward(  # type: ignore[assignment]
            weakref.ref(self), model.forward)

    # ---- Forward. ----

    def _attach(self, model: torch.nn.Module) -> None:
        for module in model.modules():
            own = [self._by_parameter[id(parameter)] for parameter
                   in module._parameters.values()
                   if id(parameter) in self._by_parameter]
            if own:
                if module is not model:
                    self._handles.append(module.register_forward_pre_hook(
                        self._before(own)))
                    self._handles.append(module.register_forward_hook(
                        self._after(own)))
                module._parameters = Looked(module._parameters,
                                             weakref.ref(self))

    def _begin(self) -> None:
        """Of the model, whose own parameters stay until its end: hooks of a
        module come before what its forward is wrapped in."""
        if not self._running:
            self._learn()
            self._taken = None
        self._running.append([])

    def _end(self) -> None:
        """Of modules that did not come to their end too."""
        for part in self._running.pop():
            self._let_go(part)
        self._make_room()

    def _use_own(self) -> None:
        self._use(self._own)
        self._running[-1].extend(self._own)

    def _learn(self) -> None:
        """Who comes after whom, from the forward before."""
        order, self._order = self._order, []
        parts = [self._owned(module) for module in order]
        for index, module in enumerate(order[:-1]):
            self._next[id(module)] = parts[index + 1]

    def _owned(self, module: torch.nn.Module) -> List[Part]:
        return [self._by_parameter[id(p)] for p in module._parameters.values()
                if id(p) in self._by_parameter]

    def _before(self, own: List[Part]) -> Callable[..., None]:
        me = weakref.ref(self)

        def hook(module: torch.nn.Module, _inputs: Any) -> None:
            gathered = me()
            if gathered is None or gathered._is_over:
                return
            if not gathered._running:
                raise errors.FailedPrecondition(
                    "%s is used outside of the model's forward, where its "
                    "weights are not gathered for backward: call the model "
                    "that the optimizer was given"
                    % type(module).__name__)
            gathered._order.append(module)
            gathered._use(own)
            gathered._running[-1].extend(own)
            gathered._prefetch(gathered._next.get(id(module), []))

        return hook

    def _after(self, own: List[Part]) -> Callable[..., None]:
        me = weakref.ref(self)

        def hook(_module: Any, _inputs: Any, _outputs: Any) -> None:
            gathered = me()
            if gathered is None or gathered._is_over:
                return
            for part in own:
                if gathered._running and part in gathered._running[-1]:
                    gathered._running[-1].remove(part)
                gathered._let_go(part)
            gathered._make_room()

        return hook

    def _look(self, parameter: Any) -> Any:
        """Another module uses it, without calling its own: it stays until
        the forward ends."""
        part = self._by_parameter.get(id(parameter))
        if part is not None and self._running and not self._is_over and \
                not part.is_shown:
            self._use([part])
            self._running[-1].append(part)
        return parameter

    # ---- Backward. ----

    def _find(self, tensor: torch.Tensor) -> Optional[Part]:
        """Whose memory the tensor lies in."""
        if tensor.device.type != "cpu" or tensor.numel() == 0 or \
                tensor.layout != torch.strided:
            return None
        address = tensor.data_ptr()
        low, high = 0, len(self._starts)
        while low < high:
            middle = (low + high) // 2
            start, end, index = self._starts[middle]
            if address < start:
                high = middle
            elif address >= end:
                low = middle + 1
            else:
                return self._parts[index]
        return None

    def _pack(self, tensor: torch.Tensor) -> Any:
        part = self._find(tensor)
        if part is None or tensor.dtype != part.entry.parameter.dtype:
            return tensor
        return Saved(part, tensor, self._session.weight_version)

    def _unpack(self, saved: Any) -> torch.Tensor:
        if not isinstance(saved, Saved):
            return saved
        part = saved.part
        if self._is_over or saved.version != self._session.weight_version:
            raise errors.FailedPrecondition(
                "backward through a graph that was made with the weights of "
                "step %d, which are gone: parameter %r is of step %d now. "
                "Call backward before optimizer.step()"
                % (saved.version, part.entry.name,
                   self._session.weight_version))
        self._use([part])
        self._let_go(part)  # the tensor below holds it
        lease = np.frombuffer(self._memory, np.uint8, part.size_bytes,
                              part.offset).view(Lease)
        part.leases += 1
        weakref.finalize(lease, end_lease, part)
        tensor = torch.frombuffer(lease, dtype=part.entry.parameter.dtype)
        if self._taken is not None and self._taken is not part:
            self._following[id(self._taken)] = part
        self._taken = part
        following = self._following.get(id(part))
        if following is not None:
            self._prefetch([following])
        return tensor.as_strided(saved.size, saved.stride, saved.offset)

    # ---- What is here. ----

    def _use(self, parts: List[Part]) -> None:
        """Gathers them; each has a lease more."""
        for part in parts:
            part.leases += 1
        try:
            self._make_room()
            missing = [p for p in parts if p.size_bytes and
                       not self._session.is_held(p.entry.name)]
            if missing:
                self.gathers += 1
                self._gather(missing)
        except BaseException:
            for part in parts:
                part.leases -= 1
            raise
        for part in parts:
            self._touch(part)
            if not part.is_shown:
                part.show()

    def _gather(self, parts: List[Part]) -> None:
        names = [part.entry.name for part in parts]
        try:
            self._session.gather(names)
        except errors.ResourceExhausted:
            # What was only asked for early, or kept, makes room.
            self._session.release(names)
            for part in parts:
                part.is_wanted = False
            self._drop_unused()
            self._gather_when_there_is_room(names)
        for part in parts:
            part.is_wanted = True

    def _gather_when_there_is_room(self, names: List[str]) -> None:
        """The node's other workers give back what they are at soon."""
        alone = self._session.local_world_size == 1
        deadline = time.monotonic() + (0 if alone else _PATIENCE)
        pause = 0.001
        while True:
            try:
                return self._session.gather(names)
            except errors.ResourceExhausted:
                if time.monotonic() >= deadline:
                    raise
            self.waits_for_room += 1
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def _touch(self, part: Part) -> None:
        self._recent[id(part)] = part
        self._recent.move_to_end(id(part))

    def _let_go(self, part: Part) -> None:
        part.leases -= 1

    def _prefetch(self, parts: Iterable[Part]) -> None:
        parts = [p for p in parts if p.size_bytes and not p.is_wanted]
        if not parts:
            return
        self.prefetches += 1
        # What was asked for before and did not come next would only take
        # room, from other workers of the node too.
        wrong = [p for p in self._early if p.leases == 0 and not p.is_shown]
        if wrong:
            for part in wrong:
                part.is_wanted = False
                self._recent.pop(id(part), None)
            self._session.release([p.entry.name for p in wrong])
        self._session.gather([p.entry.name for p in parts], wait=False)
        for part in parts:
            part.is_wanted = True
            self._touch(part)
        self._early = parts

    def _drop_unused(self) -> None:
        self._make_room(keep=0)

    def _make_room(self, keep: Optional[int] = None) -> None:
        """Gives back what nobody uses, the longest unused first, until no
        more than the cache is kept. What was asked for early stays."""
        limit = self._cache_bytes if keep is None else keep
        idle = [p for p in self._recent.values() if p.leases == 0 and
                (keep is not None or p.is_shown)]
        size = sum(p.size_bytes for p in idle)
        names = []
        for part in idle:
            if size <= limit:
                break
            size -= part.size_bytes
            part.hide()
            part.is_wanted = False
            del self._recent[id(part)]
            names.append(part.entry.name)
        if names:
            self._session.release(names)

    def release_all(self) -> None:
        """Before a step ends: what is held then would be gathered anew."""
        self._drop_unused()

    @contextlib.contextmanager
    def gathered(self, parameters: Optional[Iterable[Any]]
                 ) -> Iterator[None]:
        """All of them are here for a while, or those that are given."""
        parts = self._parts if parameters is None else [
            self._by_parameter[id(p)] for p in parameters]
        self._use(parts)
        try:
            yield
        finally:
            for part in parts:
                self._let_go(part)
            self._make_room()

    # ---- As _weights.Weights. ----

    def check(self) -> None:
        for part in self._parts:
            parameter = part.entry.parameter
            if parameter.data_ptr() not in (part.address,
                                            part.absent.data_ptr()):
                raise self._explain(part.entry, True)
            if parameter._version != part.version:
                raise self._explain(part.entry, False)

    def check_pages(self) -> None:
        """Refuses writes that no version counts."""
        page = _weights.first_private_page(self._memory, self._base)
        if page is None:
            return
        start, end = page * mmap.PAGESIZE, (page + 1) * mmap.PAGESIZE
        for part in self._parts:
            if part.offset < end and start < part.offset + part.size_bytes:
                raise self._explain(part.entry, False)

    def published(self) -> None:
        with torch.no_grad():
            for part in self._parts:
                part.empty_view.zero_()
                part.version = part.entry.parameter._version
        self.drop_pages()

    def drop_copy(self) -> None:
        """Nothing: what is not resident is not copied."""

    def drop_pages(self) -> None:
        if isinstance(self._memory, mmap.mmap):
            self._memory.madvise(mmap.MADV_DONTNEED)

    def drop_edits(self) -> None:
        self.published()

    def freeze(self) -> None:
        """The weights are given back; the model cannot be used any more."""
        self._is_over = True
        for part in self._parts:
            part.hide()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
