"""What the training examples say of a run: losses, digests, bytes."""

import hashlib
import json
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np

_SHOWN_LOSSES = 10


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
                "steps": len(self.losses),
                "first": float(np.mean(self.first)),
                "last": float(np.mean(self.last))}


class Traffic:
    """The bytes that this node sent to others in the steps of a run: as the
    daemon counts them, and as the kernel counts them at the interface that
    the lab gives each node when its links have a rate.

    `elements` are trainable. Without other nodes there is nothing to say.
    """

    def __init__(self, elements: int, nodes: int):
        self.elements = elements
        self.nodes = nodes
        self.steps = 0
        self.wire = 0
        self.payload = 0
        self._interface = os.environ.get("BALLAST_LAB_INTERFACE", "")
        self._start = self._counter()

    def add(self, wire: int, payload: int) -> None:
        self.steps += 1
        self.wire += wire
        self.payload += payload

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

    def progress(self, wire: int) -> str:
        """Of one step. Compression is against 4 bytes for each gradient and
        for each weight."""
        if self.nodes < 2 or wire == 0:
            return ""
        return ", %.3f MB to other nodes (%.1fx compressed)" % (
            1e-6 * wire, self.share(8) / wire)

    def as_dict(self) -> Dict[str, Any]:
        """Totals; call it when the last step is done."""
        end = self._counter()
        return {"nodes": self.nodes, "elements": self.elements,
                "wire_bytes": self.wire, "payload_bytes": self.payload,
                "interface_bytes":
                    None if end is None or self._start is None
                    else end - self._start}


def _bytes_summary(traffic: Traffic, totals: Dict[str, Any]) -> List[str]:
    """Lines that compare with the formulae: M is 2 bytes for each trainable
    element, ZeRO-3 moves 3M in a step and ZeRO++ 0.75M, (N-1)/N of it
    between nodes."""
    if traffic.nodes < 2 or traffic.wire == 0:
        return []
    sent = traffic.wire / traffic.steps
    lines = ["sent by node 0 to other nodes, per step: %.3f MB, %.3f MB of it "
             "codes, scales and values" % (
                 1e-6 * sent, 1e-6 * traffic.payload / traffic.steps)]
    for name, factor in (("ZeRO-3", 3.0), ("ZeRO++", 0.75)):
        formula = traffic.share(2 * factor)
        lines.append("  %s, %g M (N-1)/N: %.3f MB, %.2f times that" % (
            name, factor, 1e-6 * formula, formula / sent))
    if totals["interface_bytes"] is not None:
        counted = totals["interface_bytes"] / traffic.steps
        lines.append("  the interface counted:  %.3f MB, %.3f times that" % (
            1e-6 * counted, counted / sent))
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
    totals = run.traffic.as_dict()
    hexadecimal = digest(run.weights)
    print("rank %d digest %s" % (run.rank, hexadecimal), flush=True)
    if run.rank != 0:
        return
    print(run.report.summary())
    print("%.4f seconds per step, %d parameters, %d characters of text"
          % (run.report.seconds / max(1, len(run.report.losses)),
             sum(array.size for array in run.weights.values()), characters))
    for line in _bytes_summary(run.traffic, totals):
        print(line)
    if os.environ.get("BALLAST_LAB_DIR"):
        print("logs of workers and daemons: %s" %
              os.environ["BALLAST_LAB_DIR"])
    sys.stdout.flush()
    if path:
        with open(path, "w", encoding="utf-8") as stream:
            json.dump({**run.report.as_dict(), **totals,
                       "digest": hexadecimal}, stream)
