"""tools/bench local: a step inside one node, push to published, against the
memory's own speed, Gloo's all-reduce and PyTorch's AdamW in the same run.

    tools/bench local [--workers W] [--model M | --elements N] [--steps K]
        [--json FILE]

ratio_to_bound compares with memcpy on all cores moving the least that a step
must move: (4 W + 30) bytes for each fp32 parameter, W gradients read, and
master, two moments and the weight read or written. ratio_to_peer compares
with Gloo's all-reduce alone, ratio_to_pytorch with it and AdamW.
"""

import sys
from typing import List

import on_lab


def add_ratios(rows: List[on_lab.Row], elements: int, workers: int) -> None:
    by_name = {row["name"]: row for row in rows}
    memcpy, gloo = by_name["memcpy"], by_name["gloo_fp32"]
    bound = (4 * workers + 30) * elements / memcpy["bytes"] * \
        memcpy["seconds"]
    for row in rows:
        if row["name"].startswith("exchange/"):
            row["ratio_to_bound"] = bound / row["seconds"]
            row["ratio_to_peer"] = gloo["seconds"] / row["seconds"]
            row["ratio_to_pytorch"] = (gloo["seconds"] + by_name["adamw"]
                                       ["seconds"]) / row["seconds"]


def table(rows: List[on_lab.Row]) -> str:
    lines = ["%-18s %9s %16s %13s %19s" % (
        "", "seconds", "of memcpy bound", "against Gloo",
        "against Gloo+AdamW")]
    for row in rows:
        lines.append("%-18s %9.3f %16s %13s %19s" % (
            row["name"], row["seconds"],
            on_lab.shown(row, "ratio_to_bound", "%.2f"),
            on_lab.shown(row, "ratio_to_peer", "%.2fx"),
            on_lab.shown(row, "ratio_to_pytorch", "%.2fx")))
    return "\n".join(lines)


def main(argv: List[str]) -> int:
    parser = on_lab.parser("local", __doc__, nodes=1, workers=4, model="gpt2")
    options = parser.parse_args(argv)
    result = on_lab.measured(
        ["memcpy", "gloo_fp32", "adamw", "exchange/exact"], nodes=1,
        workers=options.workers, **on_lab.model_of(options))
    rows = result["rows"]
    add_ratios(rows, result["elements"], options.workers)
    print(on_lab.title(options, result))
    print(table(rows))
    on_lab.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(on_lab.main("local", lambda: main(sys.argv[1:])))
