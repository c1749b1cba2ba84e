"""The table of tools/quickstart --compare, from the files that the training
examples write with --json:

    compare.py RANKS NAME=FILE…

The first is what the others are compared with. Bytes are the interface's where
the lab's links have a rate. Without one they are the daemon's, and for Gloo,
which counts none, those of its ring over all ranks: 2 (R-1)/R times 4 bytes
for each element cross from each node to the next.
"""

import json
import sys
from typing import Any, Dict, List, NamedTuple, Tuple


class Row(NamedTuple):
    name: str
    seconds: float   # per step
    megabytes: float  # per step and node
    source: str      # of the bytes
    loss: float


def row(name: str, result: Dict[str, Any], ranks: int) -> Row:
    """One run's numbers."""
    steps = max(1, result["steps"])
    if result["interface_bytes"] is not None:
        sent, source = result["interface_bytes"], "interface"
    elif result["wire_bytes"] is not None:
        sent, source = result["wire_bytes"], "daemon"
    elif result["nodes"] > 1:
        sent, source = 8 * result["elements"] * (ranks - 1) / ranks, "formula"
    else:
        sent, source = 0.0, "one node"
    return Row(name, result["seconds"] / steps, sent / 1e6, source,
               result["last"])


def table(rows: List[Row]) -> str:
    lines = ["%-18s %14s %20s  %-9s %11s" % (
        "", "seconds/step", "MB per step, node", "", "final loss")]
    first = rows[0]
    for one in rows:
        ratio = "" if one is first or one.megabytes == 0 else \
            " (%.1fx less)" % (first.megabytes / one.megabytes)
        lines.append("%-18s %14.4f %20.3f  %-9s %11.4f%s" % (
            one.name, one.seconds, one.megabytes, one.source, one.loss,
            ratio))
    return "\n".join(lines)


def _read(argument: str) -> Tuple[str, Dict[str, Any]]:
    name, _, path = argument.partition("=")
    with open(path, encoding="utf-8") as stream:
        return name, json.load(stream)


def main(argv: List[str]) -> int:
    if len(argv) < 2 or not argv[0].isdigit():
        print("usage: compare.py RANKS NAME=FILE…", file=sys.stderr)
        return 2
    ranks = int(argv[0])
    print(table([row(*_read(one), ranks) for one in argv[1:]]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
