"""What the training examples say of a run: losses, digests, bytes."""

import hashlib
import json
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np

_SHOWN_LOSSES = 10
_COUNTS = ("wire_bytes", "payload_bytes", "interface_bytes")


def digest(weights: Dict[str, np.ndarray]) -> str:
    """SHA-256 of all weights, bit for bit."""
    total = hashlib.sha256()
    for name in sorted(weights):
        total.update(name.encode())
        total.update(np.ascontiguousarray(weights[name]).tobytes())
    return total.hexdigest()


class Report:
    """Progress and summary; travels in the cursor, so that a worker that
    starts again still knows how the run began."""

    def __init__(self, cursor: bytes = b""):
        self.losses: List[float] = []
        self.first: List[float] = []
        self.last: List[float] = []
        self.seconds = 0.0
        self.evaluation: Optional[float] = None
        if cursor:
            self.first, self.last = json.loads(cursor)

    def add(self, loss: float) -> None:
        self.losses.append(loss)
        self.first = (self.first + [loss])[:_SHOWN_LOSSES]
        self.last = (self.last + [loss])[-_SHOWN_LOSSES:]

    def cursor_after(self, loss: float) -> bytes:
        """What to commit with the step that had this loss."""
        return json.dumps([(self.first + [loss])[:_SHOWN_LOSSES],
                           (self.last + [loss])[-_SHOWN_LOSSES:]]).encode()

    def summary(self) -> str:
        return "loss %.4f -> %.4f" % (np.mean(self.first), np.mean(self.last))

    def as_dict(self) -> Dict[str, Any]:
        """For a file that tools/lib/compare.py and tests read."""
        return {"losses": self.losses, "seconds": self.seconds,
                "steps": len(self.losses), "evaluation": self.evaluation,
                "first": float(np.mean(self.first)),
                "last": float(np.mean(self.last))}


class Traffic:
    """The bytes that this node sent to others in a step: as the daemon counts
    them, and as the kernel counts them at the interface that the lab gives
    each node when its links have a rate. Make it when the first weights are
    there: no step counts them, and the interface's counter starts here.

    `elements` are trainable. Without other nodes there is nothing to say.
    """

    def __init__(self, elements: int, nodes: int):
        self.elements = elements
        self.nodes = nodes
        self._wire: List[int] = []
        self._payload: List[int] = []
        self._interface = os.environ.get("BALLAST_LAB_INTERFACE", "")
        self._start = self._counter()

    def add(self, wire: int = 0, payload: int = 0) -> None:
        """A step is done."""
        self._wire.append(wire)
        self._payload.append(payload)

    def _counter(self) -> Optional[int]:
        path = "/sys/class/net/%s/statistics/tx_bytes" % self._interface
        if not self._interface or not os.path.exists(path):
            return None
        with open(path, encoding="utf-8") as stream:
            return int(stream.read())

    def share(self, bytes_per_element: float) -> float:
        """(N-1)/N of a model with so many bytes for each element."""
        return bytes_per_element * self.elements * (self.nodes - 1) / \
            self.nodes

    def progress(self) -> str:
        """Of the last step. Compression is against 4 bytes for each gradient
        and for each weight."""
        wire = self._wire[-1]
        if self.nodes < 2 or wire == 0:
            return ""
        return ", %.3f MB to other nodes (%.1fx compressed)" % (
            1e-6 * wire, self.share(8) / wire)

    def means(self) -> Dict[str, Any]:
        """Per step; None where nobody counts. Call it when the last step is
        done."""
        steps = len(self._wire)
        if self.nodes < 2 or steps < 1:
            return dict.fromkeys(_COUNTS)
        end = self._counter()
        interface = None if end is None or self._start is None else \
            (end - self._start) / steps
        return dict(zip(_COUNTS, (sum(self._wire) / steps or None,
                                  sum(self._payload) / steps or None,
                                  interface)))

    def summary(self) -> List[str]:
        """Lines that compare with the formulae: M is 2 bytes for each
        trainable element; ZeRO-3 moves 3M in a step and ZeRO++ 0.75M, (N-1)/N
        of it between nodes."""
        wire, payload, interface = self.means().values()
        if not wire:
            return []
        lines = ["one node sends %.3f MB in a step, of it %.3f MB values, "
                 "codes and scales" % (1e-6 * wire, 1e-6 * (payload or 0))]
        for name, factor in (("ZeRO-3", 3.0), ("ZeRO++", 0.75)):
            formula = self.share(2 * factor)
            lines.append("  %s's formula, (N-1)/N x %g M: %.3f MB, %.2f "
                         "times that" % (name, factor, 1e-6 * formula,
                                         formula / wire))
        if interface is not None:
            lines.append("  the interface counted: %.3f MB, %.3f times that"
                         % (1e-6 * interface, interface / wire))
        return lines


class Run(NamedTuple):
    """A run that is done."""
    report: Report
    weights: Dict[str, np.ndarray]
    rank: int
    traffic: Traffic


def finish(run: Run, characters: int, path: Optional[str]) -> None:
    """Every rank shows its digest; rank 0 the summary, and writes it as JSON
    to `path`."""
    means = run.traffic.means()
    hexadecimal = digest(run.weights)
    print("rank %d digest %s" % (run.rank, hexadecimal), flush=True)
    if run.rank != 0:
        return
    print(run.report.summary())
    print("%.4f seconds per step, %d parameters, %d characters of text"
          % (run.report.seconds / max(1, len(run.report.losses)),
             sum(array.size for array in run.weights.values()), characters))
    for line in run.traffic.summary():
        print(line)
    if os.environ.get("BALLAST_LAB_DIR"):
        print("logs of workers and daemons: %s" %
              os.environ["BALLAST_LAB_DIR"])
    sys.stdout.flush()
    if path:
        with open(path, "w", encoding="utf-8") as stream:
            json.dump({**run.report.as_dict(), **means,
                       "nodes": run.traffic.nodes,
                       "elements": run.traffic.elements,
                       "digest": hexadecimal}, stream)
