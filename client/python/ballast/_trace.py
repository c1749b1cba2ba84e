"""What one rank did when, for Session.trace: Chrome's trace format.

Two tracks per rank: the worker's own spans (compute, push, wait), and the
daemon's stages of each step (collect, reduce, vote, update, publish), which
follow one another and end when step() returns. Open the file in
chrome://tracing or ui.perfetto.dev. Times are this machine's monotonic clock,
so that files of ranks on one machine can be laid over one another.
"""

import collections
import json
import time
from typing import Any, Callable, Deque, Dict, List, Mapping, Tuple

_KEPT = 100_000  # spans; the oldest go
_WORKER, _DAEMON = 0, 1
_DAEMON_STAGES = ("collect", "reduce", "vote", "update", "publish")

_Span = Tuple[str, int, float, float, Dict[str, Any]]


class Trace:
    """Confined to the session's thread. Recording costs about a microsecond
    a span and never fails."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._spans: Deque[_Span] = collections.deque(maxlen=_KEPT)
        self._computing_since = clock()

    def now(self) -> float:
        return self._clock()

    def pushed(self, name: str, start: float) -> None:
        self._add("push", _WORKER, start, self._clock(), {"tensor": name})

    def waited(self, name: str, start: float) -> None:
        self._add("wait", _WORKER, start, self._clock(), {"tensor": name})

    def stepped(self, step: int, start: float,
                stages: Mapping[str, float]) -> None:
        """A step() that began at `start` returns."""
        end = self._clock()
        self._add("compute", _WORKER, self._computing_since, start,
                  {"step": step})
        self._add("wait", _WORKER, start, end, {"step": step})
        for stage in reversed(_DAEMON_STAGES):
            begun = end - stages[stage]
            self._add(stage, _DAEMON, begun, end, {"step": step})
            end = begun
        self._computing_since = self._clock()

    def _add(self, name: str, track: int, start: float, end: float,
             details: Dict[str, Any]) -> None:
        self._spans.append((name, track, start, max(start, end), details))

    def as_dict(self, rank: int, job: str) -> Dict[str, Any]:
        """The whole file."""
        events: List[Dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": rank, "tid": 0,
             "args": {"name": "%s rank %d" % (job, rank)}}]
        for track, name in ((_WORKER, "worker"), (_DAEMON, "daemon")):
            events.append({"ph": "M", "name": "thread_name", "pid": rank,
                           "tid": track, "args": {"name": name}})
        for name, track, start, end, details in self._spans:
            events.append({"ph": "X", "name": name, "cat": "ballast",
                           "pid": rank, "tid": track, "ts": 1e6 * start,
                           "dur": 1e6 * (end - start), "args": details})
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def write(self, path: str, rank: int, job: str) -> None:
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(self.as_dict(rank, job), stream)
