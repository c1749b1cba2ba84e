"""What a rank commits with each step besides gradients: random number
generators, buffers, schedulers, the user's own bytes.

A worker that takes a rank's place gets it all back, so that it computes the
open step as its predecessor would have.
"""

import random
import struct
import sys
import warnings
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import torch

from .. import errors
from . import _pack

_MAX_BYTES = 65536  # of a cursor
_FORMAT = 1
_PARTS = {"random", "buffers", "tracked", "user"}


def _random_state() -> Dict[str, Any]:
    """Of the three generators, as they give it."""
    return {"torch": torch.get_rng_state(), "python": random.getstate(),
            "numpy": np.random.get_state()}


def _packed(state: Dict[str, Any]) -> Dict[str, Any]:
    """As it travels: words as bytes."""
    version, internal, gauss = state["python"]
    name, keys, position, has_gauss, cached = state["numpy"]
    return {"torch": state["torch"],
            "python": (version, struct.pack("<%dI" % len(internal),
                                            *internal), gauss),
            "numpy": (name, np.asarray(keys, np.uint32).tobytes(),
                      int(position), int(has_gauss), float(cached))}


def _unpacked(state: Dict[str, Any]) -> Dict[str, Any]:
    version, internal, gauss = state["python"]
    name, keys, *rest = state["numpy"]
    words = struct.unpack("<%dI" % (len(internal) // 4), internal)
    return {"torch": state["torch"], "python": (version, words, gauss),
            "numpy": (name, np.frombuffer(keys, np.uint32), *rest)}


def _set_random_state(state: Dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


class _Tracked:
    """An object with state_dict and load_state_dict."""

    def __init__(self, name: str, thing: Any, per_step: bool):
        self.name = name
        self.thing = thing
        self.per_step = per_step
        self.count: Optional[int] = None  # of its steps at the last commit

    def check_stepped_once(self) -> None:
        count = getattr(self.thing, "_step_count", None)
        if not self.per_step or self.count is None or count is None or \
                count == self.count + 1:
            return
        raise errors.FailedPrecondition(
            "the tracked scheduler %r was stepped %d times since the last "
            "optimizer.step(), not once: if that is how it is meant, "
            "optimizer.track(scheduler, per_step=False)"
            % (self.name, count - self.count))

    def committed(self) -> None:
        self.count = getattr(self.thing, "_step_count", None)


class State:
    """The committed state of one rank.

    Args:
      model: its persistent buffers are part of the state once they change;
        None: none are.
      follows: they are rank 0's, whose cursor has them; this is another rank.
    """

    def __init__(self, model: Optional[torch.nn.Module],
                 follows: bool = False):
        self._model = model
        self._follows = follows and model is not None
        self._names = [] if model is None else _persistent_buffers(model)
        self._initial = self._copies()
        self._tracked: List[_Tracked] = []
        self._resumed: Dict[str, Any] = {}
        # What the step that is computed started from.
        self._top: Optional[Dict[str, Any]] = None
        self._is_resumed = False
        self.user = b""

    # ---- Out. ----

    def encode(self, user: bytes) -> bytes:
        """The cursor of the step that ends here."""
        for tracked in self._tracked:
            tracked.check_stepped_once()
        parts = {"random": _packed(_random_state()), "buffers": self._changed(),
                 "tracked": {t.name: t.thing.state_dict()
                             for t in self._tracked},
                 "user": user}
        # The limit is that of rank 0, so that all ranks hear of it.
        data = _pack.dumps({"format": _FORMAT, **parts})
        if len(data) > _MAX_BYTES:
            sizes = {name: len(_pack.dumps(part))
                     for name, part in parts.items()}
            raise errors.ResourceExhausted(
                "what this rank commits with a step has %d bytes, at most %d "
                "are kept (%s): large buffers stay out with buffers=\"local\""
                ", other large things belong in files whose names go into "
                "the cursor" % (len(data), _MAX_BYTES, ", ".join(
                    "%s: %d" % item for item in sizes.items())))
        if self._follows:
            data = _pack.dumps({"format": _FORMAT, **parts, "buffers": {}})
        return data

    def _buffers(self) -> Dict[str, torch.Tensor]:
        """As they are now: a forward may replace a buffer's tensor."""
        if self._model is None:
            return {}
        found = dict(self._model.named_buffers())
        return {name: found[name] for name in self._names if name in found}

    def _copies(self) -> Dict[str, torch.Tensor]:
        return {name: buffer.detach().clone()
                for name, buffer in self._buffers().items()}

    def _changed(self) -> Dict[str, torch.Tensor]:
        """Constants are not carried: who builds the model has them."""
        return {name: buffer.detach()
                for name, buffer in self._buffers().items()
                if not torch.equal(buffer, self._initial[name])}

    def with_present_buffers(self, cursor: bytes) -> bytes:
        """A committed cursor with the buffers of now: what belongs to weights
        that are loaded between two steps."""
        state = _pack.loads(cursor)
        return _pack.dumps({**state, "buffers": self._changed()})

    def loaded(self) -> None:
        """A step that is repeated from here on starts from these buffers."""
        if self._top is not None:
            self._top = {**self._top, "buffers": self._copies()}

    def committed(self, user: bytes) -> None:
        self.user = user
        for tracked in self._tracked:
            tracked.committed()

    # ---- In. ----

    def resume(self, cursor: bytes, rank0_cursor: bytes) -> None:
        """Takes over what the rank committed last. Of buffers what rank 0 did,
        if this one follows it, or has committed nothing: a snapshot has no
        cursors for another number of ranks."""
        if cursor:
            state = self._take(cursor)
            self._resumed = state["tracked"]
            self._is_resumed = True
        if self._names and rank0_cursor and (self._follows or not cursor):
            self._restore_buffers(_checked(rank0_cursor)["buffers"])
            if self._top is not None:
                self._top["buffers"] = self._copies()

    def follow(self, rank0_cursor: Callable[[], bytes]) -> None:
        """After a commit: rank 0's buffers, where they count."""
        if self._follows and self._names:
            self._restore_buffers(_checked(rank0_cursor())["buffers"])

    def adopt(self, cursor: bytes) -> None:
        """After a step that was computed twice, by a former worker of this
        rank too: what that one committed counts."""
        state = self._take(cursor)
        for tracked in self._tracked:
            if tracked.name in state["tracked"]:
                tracked.thing.load_state_dict(state["tracked"][tracked.name])
            tracked.committed()

    def _take(self, cursor: bytes) -> Dict[str, Any]:
        state = _checked(cursor)
        self.user = state["user"]
        try:
            self._top = {"random": _unpacked(state["random"]),
                         "buffers": state["buffers"]}
            self._restore(self._top)
        except (ValueError, LookupError, TypeError, RuntimeError,
                struct.error) as error:
            raise errors.InvalidArgument(
                "the job's cursor is damaged: %s" % error) from error
        return state

    def _restore(self, state: Dict[str, Any]) -> None:
        _set_random_state(state["random"])
        self._restore_buffers(state["buffers"])

    def _restore_buffers(self, carried: Dict[str, torch.Tensor]) -> None:
        buffers = self._buffers()
        # Of those that have not changed nothing was carried.
        values = {name: self._initial[name] for name in buffers}
        values.update(carried)
        with torch.no_grad():
            for name, value in values.items():
                buffer = buffers.get(name)
                if buffer is None or buffer.shape != value.shape:
                    raise errors.InvalidArgument(
                        "the job committed a buffer %r of shape %s, which "
                        "the model does not have" % (name,
                                                     tuple(value.shape)))
                buffer.copy_(value)

    def track(self, thing: Any, name: Optional[str],
              per_step: bool) -> bool:
        """Whether a committed state was found and loaded."""
        key = str(len(self._tracked)) if name is None else name
        if any(t.name == key for t in self._tracked):
            raise errors.InvalidArgument(
                "something is tracked as %r already: give another name="
                % key)
        tracked = _Tracked(key, thing, per_step)
        self._tracked.append(tracked)
        state = self._resumed.pop(key, None)
        if state is None:
            return False
        thing.load_state_dict(state)
        tracked.committed()
        if per_step:
            # A turn of the loop steps it after the commit.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                thing.step()
        return True

    def begin_turn(self, is_repeated: bool) -> None:
        """At the top of a turn: a step that is computed again, or by a
        replacement, starts from the same random numbers and buffers."""
        if self._top is not None and (is_repeated or self._is_resumed):
            self._restore(self._top)
        self._is_resumed = False
        self._resumed_untracked()
        self._top = {"random": _random_state(), "buffers": self._copies()}

    def _resumed_untracked(self) -> None:
        if self._resumed:
            print("ballast: committed state of %s is not used: call "
                  "optimizer.track() before the loop"
                  % ", ".join(sorted(self._resumed)), file=sys.stderr)
            self._resumed = {}


def _checked(cursor: bytes) -> Dict[str, Any]:
    state = _pack.loads(cursor)
    if not isinstance(state, dict) or state.get("format") != _FORMAT or \
            not _PARTS <= set(state):
        raise errors.InvalidArgument(
            "the job's cursor was written by another version of this "
            "library: end the job (ballastctl, or close()) or use that "
            "version")
    return state


def _persistent_buffers(model: torch.nn.Module) -> List[str]:
    """Those that state_dict() has."""
    saved = set(model.state_dict(keep_vars=True))
    return [name for name, _ in model.named_buffers() if name in saved]
