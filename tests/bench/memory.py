"""tools/bench memory: what a job takes of a node's memory, against what the
daemon admits it with and what the design's formula says.

    tools/bench memory [--nodes N] [--workers W] [--model M | --elements N]
        [--preset P]… [--steps K] [--json FILE]

`measured` is by how much the daemon's resident memory has grown after K steps,
of the node where it is the most; `admitted` what `ballastctl job` shows there;
`formula` the design's, here in bytes for fp32 tensors and AdamW:

    W·P·4 + P·4 + P/N·(4 master + 8 moments + 4 gradient)
        + windows + undo + residuals + snapshot + replicas + control blocks

The first line is computed here; the parts of the second are as the daemon
counts them (`memory` of `ballastctl --json job`). The target is measured within
2 % of both: ratio_to_bound is measured ÷ admitted, ratio_to_formula measured ÷
formula. Exits with 1 on a miss.
"""

import sys
from typing import Dict, List

import on_lab

_TOLERANCE = 0.02


_PARTS = ("windows", "undo", "residuals", "snapshot", "replicas",
          "control_blocks")


def formula(elements: int, nodes: int, workers: int,
            parts: Dict[str, int]) -> float:
    return (elements * (4.0 * workers + 4 + 16.0 / nodes) +
            sum(parts[part] for part in _PARTS))


def add_ratios(rows: List[on_lab.Row], elements: int, nodes: int,
               workers: int) -> None:
    for row in rows:
        row["formula_bytes"] = formula(elements, nodes, workers, row["parts"])
        row["ratio_to_bound"] = row["bytes"] / row["admitted_bytes"]
        row["ratio_to_formula"] = row["bytes"] / row["formula_bytes"]


def misses(rows: List[on_lab.Row]) -> List[str]:
    return ["%s: measured is %.3f of what it is admitted with, %.3f of the "
            "formula; within %.2f of 1 is the target" %
            (row["name"], row["ratio_to_bound"], row["ratio_to_formula"],
             _TOLERANCE)
            for row in rows
            if max(abs(row["ratio_to_bound"] - 1),
                   abs(row["ratio_to_formula"] - 1)) > _TOLERANCE]


def table(rows: List[on_lab.Row]) -> str:
    lines = ["%-18s %12s %12s %9s %12s %9s" % (
        "", "measured MB", "admitted MB", "ratio", "formula MB", "ratio")]
    for row in rows:
        lines.append("%-18s %12.1f %12.1f %9.3f %12.1f %9.3f" % (
            row["name"], row["bytes"] / 1e6, row["admitted_bytes"] / 1e6,
            row["ratio_to_bound"], row["formula_bytes"] / 1e6,
            row["ratio_to_formula"]))
    for row in rows:
        lines.append("%s, of the formula, MB: %s" % (
            row["name"], ", ".join("%s %.1f" % (part, row["parts"][part] / 1e6)
                                   for part in _PARTS if row["parts"][part])))
    return "\n".join(lines)


def main(argv: List[str]) -> int:
    parser = on_lab.parser("memory", __doc__, nodes=4, workers=1,
                           model="gpt2")
    parser.add_argument("--preset", action="append")
    options = parser.parse_args(argv)
    result = on_lab.measured(
        ["memory/" + preset for preset in
         options.preset or ("exact", "zeropp", "delta4")],
        nodes=options.nodes, workers=options.workers, rate=options.rate,
        **on_lab.model_of(options))
    rows = result["rows"]
    add_ratios(rows, result["elements"], options.nodes, options.workers)
    print(on_lab.title(options, result))
    print(table(rows))
    on_lab.write(options.json, rows)
    missed = misses(rows)
    for line in missed:
        print("MISSED " + line)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(on_lab.main("memory", lambda: main(sys.argv[1:])))
