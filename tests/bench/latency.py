"""tools/bench latency: an empty step, against Gloo's barrier of the same
workers in the same run.

    tools/bench latency [--nodes N] [--workers W] [--rate R] [--repeats K]
        [--json FILE]

The model is T tensors of 64 elements, the optimizer SGD with rate 0: what is
left is control: push, sums, vote, commit, update, publish, wake-up. Rows are
latency/PRESET/T, and latency/PRESET/T/B with buckets of B bytes: many small
tensors share a bucket, many small buckets pay an exchange each.
ratio_to_peer is the barrier's p50 divided by the step's, as of all benchmarks
the peer's seconds by ours (at least 0.25 is wanted); the table shows the other
way round how many barriers a step takes.
"""

import sys
from typing import List

import on_lab


def table(rows: List[on_lab.Row]) -> str:
    lines = ["%-24s %12s %12s %16s" % ("", "p50 µs", "p99 µs",
                                       "p50 of barrier")]
    for row in rows:
        barriers = ("%.2fx" % (1 / row["ratio_to_peer"])
                    if "ratio_to_peer" in row else "")
        lines.append("%-24s %12.1f %12.1f %16s" % (
            row["name"], 1e6 * row["p50_seconds"], 1e6 * row["p99_seconds"],
            barriers))
    return "\n".join(lines)


def add_ratios(rows: List[on_lab.Row]) -> None:
    """The first one is the barrier."""
    for row in rows[1:]:
        row["ratio_to_peer"] = rows[0]["p50_seconds"] / row["p50_seconds"]


def main(argv: List[str]) -> int:
    parser = on_lab.parser("latency", __doc__, nodes=2, workers=2)
    parser.add_argument("--repeats", type=int, default=1000)
    options = parser.parse_args(argv)
    rows = on_lab.measured(
        ["barrier", "latency/exact/1", "latency/exact/1024",
         "latency/exact/1024/8192"], nodes=options.nodes,
        workers=options.workers, rate=options.rate, elements=64,
        repeats=options.repeats)["rows"]
    add_ratios(rows)
    print("%d nodes, %d workers each, %d steps" % (
        options.nodes, options.workers, options.repeats))
    print(table(rows))
    on_lab.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(on_lab.main("latency", lambda: main(sys.argv[1:])))
