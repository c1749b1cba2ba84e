"""Pushing during backward, waiting for weights where they are first used."""

import collections
import weakref
from typing import Any, Dict, List, Optional

import torch

from .. import errors
from ._parameters import Entry


class Overlap:
    """Confined to its optimizer's thread (autograd runs the hooks of a CPU
    graph on the thread that calls backward)."""

    def __init__(self, optimizer: Any, model: torch.nn.Module, passes: int):
        self._optimizer = weakref.ref(optimizer)
        self._model = model
        self._passes = passes
        self._counts: Dict[str, int] = {}
        self._handles: List[Any] = []
        self._keep: List[Any] = []  # AccumulateGrad nodes of torch 1.x
        self._awaited: Dict[int, Entry] = {}

    @classmethod
    def create(cls, optimizer: Any, model: Optional[torch.nn.Module],
               is_wanted: Any, passes: Any) -> Optional["Overlap"]:
        """None without overlap; checks the arguments."""
        if type(passes) is not int or passes < 1:
            raise errors.InvalidArgument(
                "backward_passes_per_step must be an integer >= 1, not %r"
                % (passes,))
        if not is_wanted:
            if passes != 1:
                raise errors.InvalidArgument(
                    "backward_passes_per_step is for overlap=True: without it "
                    "gradients are pushed by step(), after as many backward "
                    "passes as you like")
            return None
        if model is None:
            raise errors.InvalidArgument(
                "overlap=True needs model=: weights are waited for where its "
                "modules use them")
        if isinstance(model, torch.jit.ScriptModule) or \
                hasattr(model, "_orig_mod"):
            raise errors.InvalidArgument(
                "overlap=True needs an ordinary module, not a compiled or "
                "scripted one, which does not say when it uses a weight")
        return cls(optimizer, model, passes)

    def attach(self, trainable: List[Entry], entries: List[Entry]) -> None:
        for entry in trainable:
            self._hook_gradient(entry)
        known = {id(entry.parameter): entry for entry in entries}
        for module in self._model.modules():
            own = [known[id(parameter)] for parameter
                   in module._parameters.values()
                   if id(parameter) in known]
            if own:
                # Layers like LSTM use weights without looking them up.
                self._handles.append(module.register_forward_pre_hook(
                    _WaitFor(weakref.ref(self), own)))
                module._parameters = _Awaited(module._parameters,
                                              weakref.ref(self))

    def detach(self) -> None:
        self.wait_all()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._keep.clear()
        for module in self._model.modules():
            if isinstance(module._parameters, _Awaited):
                module._parameters = module._parameters.plain()

    # ---- Gradients. ----

    def _hook_gradient(self, entry: Entry) -> None:
        me = weakref.ref(self)

        def accumulated(*_unused: Any) -> None:
            overlap = me()
            if overlap is not None:
                overlap._on_gradient(entry)

        parameter = entry.parameter
        register = getattr(parameter, "register_post_accumulate_grad_hook",
                           None)
        if register is not None:  # torch 2.1
            self._handles.append(register(accumulated))
            return
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        self._keep.append(node)
        self._handles.append(node.register_hook(accumulated))

    def _on_gradient(self, entry: Entry) -> None:
        optimizer = self._optimizer()
        if optimizer is None:
            return
        count = self._counts.get(entry.name, 0) + 1
        self._counts[entry.name] = count
        if count > self._passes:
            raise errors.FailedPrecondition(
                "backward came to parameter %r a %s time before step(), after "
                "its gradient was pushed: give backward_passes_per_step=%d "
                "for accumulation, or call optimizer.step() first"
                % (entry.name, _ordinal(count), count))
        if count == self._passes:
            optimizer._push(entry)

    def begin_step(self) -> None:
        self._counts.clear()

    # ---- Weights. ----

    def committed(self) -> None:
        """New weights are on their way."""
        optimizer = self._optimizer()
        if optimizer is not None:
            self._awaited = {id(e.parameter): e for e in optimizer._trainable}

    def wait_for(self, parameter: Any) -> None:
        entry = self._awaited.pop(id(parameter), None)
        optimizer = self._optimizer()
        if entry is not None and optimizer is not None:
            try:
                optimizer.session.wait(entry.name)
            except BaseException:
                self._awaited[id(parameter)] = entry
                raise

    def wait_all(self) -> None:
        optimizer = self._optimizer()
        if self._awaited and optimizer is not None:
            optimizer.session.wait()
            self._awaited.clear()


class _WaitFor:
    """A forward pre-hook of one module."""

    def __init__(self, overlap: Any, entries: List[Entry]):
        self._overlap = overlap
        self._entries = entries

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        overlap = self._overlap()
        if overlap is not None and overlap._awaited:
            for entry in self._entries:
                overlap.wait_for(entry.parameter)

    def __deepcopy__(self, memo: Any) -> "_WaitFor":
        return _WaitFor(_nobody, [])

    def __reduce__(self) -> Any:
        return _inert, ()


def _nobody() -> None:
    return None


def _inert() -> _WaitFor:
    return _WaitFor(_nobody, [])


class _Awaited(collections.OrderedDict):
    """A module's parameters: looking one up waits for its weights. A copy is
    an ordinary dictionary."""

    def __init__(self, parameters: Any, overlap: Any):
        super().__init__()
        self._overlap = overlap
        for name, parameter in parameters.items():
            self[name] = parameter

    def _ready(self, parameter: Any) -> Any:
        overlap = self._overlap()
        if overlap is not None and overlap._awaited:
            overlap.wait_for(parameter)
        return parameter

    def __getitem__(self, name: Any) -> Any:
        return self._ready(super().__getitem__(name))

    def get(self, name: Any, default: Any = None) -> Any:
        return self[name] if name in self else default

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]

    def plain(self) -> Any:
        return collections.OrderedDict(self.items())

    def __deepcopy__(self, memo: Any) -> Any:
        import copy
        return copy.deepcopy(self.plain(), memo)

    def __reduce__(self) -> Any:
        return collections.OrderedDict, (list(self.items()),)


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, "%dth" % number)
