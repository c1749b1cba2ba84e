"""tools/bench step: wall-clock of a GPT-2 training loop, against PyTorch's
DDP over Gloo on the same links in the same run.

    tools/bench step [--nodes N] [--workers W] [--rate R]
        [--model gpt2|gpt2-medium|tiny] [--tokens T] [--preset P]…
        [--steps K] [--json FILE]

The loop is the whole: forward, backward, exchange, AdamW. Compute is kept
small, so that the exchange shows, by one sequence of T tokens a rank (8);
the row "compute" is forward and backward alone, of all ranks at once on this
machine, and is marked if it is more than a second. Ballast pushes during
backward and waits where a weight is first used (overlap=True); DDP overlaps
its all-reduce with backward as ever.

A row is a mean over K steps after one that is not counted:

  seconds        of the slowest rank
  MB             that the busiest node's interface sent, else those the
                 daemon counted
  against DDP    ratio_to_peer: DDP fp32's seconds divided by these
  processor      seconds of all processes divided by the cores: the floor of
                 any row on one machine
  loss           of the last step; rows that start equal end near one another

Needs about 2.6 GB a worker for gpt2.
"""

import os
import sys
from typing import List

import on_lab

_HERE = os.path.dirname(os.path.abspath(__file__))
_MOST_COMPUTE = 1.0  # seconds
_WANTED = 3.0        # times DDP fp32


def add_ratios(rows: List[on_lab.Row], cores: int) -> None:
    ddp = next((row for row in rows if row["name"] == "ddp_fp32"), None)
    for row in rows:
        row["processor_floor"] = row.pop("processor_seconds") / cores
        row["sent"] = row.get("tx_bytes") or row.get("wire_bytes", 0)
        if ddp and row["name"] != "compute":
            row["ratio_to_peer"] = ddp["seconds"] / row["seconds"]


def table(rows: List[on_lab.Row]) -> str:
    lines = ["%-16s %9s %9s %12s %11s %9s" % (
        "", "seconds", "MB", "against DDP", "processor", "loss")]
    for row in rows:
        lines.append("%-16s %9.3f %9.1f %12s %9.2f s %9.4f" % (
            row["name"], row["seconds"], row["sent"] / 1e6,
            on_lab.shown(row, "ratio_to_peer", "%.2fx"),
            row["processor_floor"], row["losses"][-1]))
    return "\n".join(lines)


def remarks(rows: List[on_lab.Row]) -> List[str]:
    """What the numbers say of the target."""
    result = []
    by_name = {row["name"]: row for row in rows}
    compute = by_name["compute"]["seconds"]
    if compute > _MOST_COMPUTE:
        result.append("compute takes %.2f s, more than %g: give fewer "
                      "--tokens" % (compute, _MOST_COMPUTE))
    ours = [row for row in rows if "/" in row["name"]]
    if ours and "ratio_to_peer" in ours[0]:
        best = max(ours, key=lambda row: row["ratio_to_peer"])
        result.append("target, %gx of DDP fp32: %s (%s, %.2fx)" % (
            _WANTED, "met" if best["ratio_to_peer"] >= _WANTED else "missed",
            best["name"], best["ratio_to_peer"]))
    return result


def main(argv: List[str]) -> int:
    parser = on_lab.parser("step", __doc__, nodes=4, workers=1)
    parser.add_argument("--model", default="gpt2",
                        choices=("gpt2", "gpt2-medium", "tiny"))
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--preset", action="append")
    options = parser.parse_args(argv)
    names = ["compute", "ddp_fp32", "ddp_fp16"] + [
        "step/" + preset for preset in options.preset or
        ("exact", "zeropp", "delta4")]
    result = on_lab.run_worker(
        "step_worker.py", ["--model", options.model, "--tokens",
                           str(options.tokens), "--steps",
                           str(options.steps)], names,
        nodes=options.nodes, workers=options.workers, rate=options.rate)
    rows = result["rows"]
    add_ratios(rows, os.cpu_count() or 1)
    print(on_lab.title(options, result) + ", %d tokens a rank" %
          options.tokens)
    print(table(rows))
    print("\n".join(remarks(rows)))
    on_lab.write(options.json, rows)
    return on_lab.judge(rows)


if __name__ == "__main__":
    sys.exit(on_lab.main("step", lambda: main(sys.argv[1:])))
