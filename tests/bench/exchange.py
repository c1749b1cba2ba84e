"""tools/bench exchange: what a step's exchange costs, against a raw TCP
stream and PyTorch's Gloo all-reduce on the same links in the same run. A row
tcp_all, from three nodes on, has every node send to every other at once: what
links lose where streams meet.

    tools/bench exchange [--nodes N] [--workers W] [--rate R]
        [--model gpt2|gpt2-medium|gpt2-large|gpt2-xl | --elements N]
        [--preset P]… [--steps K] [--peer gloo|none] [--set KEY=VALUE]…
        [--json FILE]

All four presets if none is named. A row is a mean over K steps after one that
is not counted:

  seconds           of the slowest rank
  MB                that the busiest node's interface sent (tx_bytes), else
                    those the daemon counted
  over payload      wire_to_payload: bytes of messages that the daemon counted,
                    headers and alignment included, per byte of the policy's
                    formula, in percent above it; of all nodes and steps
  of TCP            link_efficiency: bytes per second of the raw stream, of
                    both those that the interface sent, headers and all
  against Gloo      ratio_to_peer: Gloo fp32's seconds divided by these
  processor         seconds of all processes divided by the cores: the floor
                    of any row on one machine; above 60 % of the wire's time,
                    marked (!), the row measures the processor, not the link

Then what each row's job measured of its links, and the algorithms it chose.
"""

import os
import sys
from typing import List

import on_lab

_BUSY = 0.6
PRESETS = ("exact", "zeropp", "delta4", "delta2")


def _sent(tcp: on_lab.Row, like: on_lab.Row) -> int:
    """What the raw stream sent, counted as what `like` did."""
    return tcp["tx_bytes"] if like.get("tx_bytes") else tcp["bytes"]


def add_ratios(rows: List[on_lab.Row], cores: int) -> None:
    """What follows from one another."""
    by_name = {row["name"]: row for row in rows}
    tcp, gloo = by_name.get("tcp"), by_name.get("gloo_fp32")
    for row in rows:
        row["processor_floor"] = row.pop("processor_seconds") / cores
        row["sent"] = row.get("tx_bytes") or row.get(
            "wire_bytes", row.get("bytes", 0))
        if row.get("all_payload_bytes"):
            row["wire_to_payload"] = (row["all_wire_bytes"] /
                                      row["all_payload_bytes"])
            row["percent_over"] = 100 * (row["wire_to_payload"] - 1)
        if tcp and row["sent"]:
            rate = _sent(tcp, like=row) / tcp["seconds"]
            row["wire_seconds"] = row["sent"] / rate
            row["link_efficiency"] = row["wire_seconds"] / row["seconds"]
        if gloo and not row["name"].startswith("tcp"):
            row["ratio_to_peer"] = gloo["seconds"] / row["seconds"]


def table(rows: List[on_lab.Row]) -> str:
    lines = ["%-18s %9s %9s %12s %8s %14s %11s" % (
        "", "seconds", "MB", "over payload", "of TCP", "against Gloo",
        "processor")]
    for row in rows:
        busy = "%.2f s" % row["processor_floor"]
        if row["processor_floor"] > _BUSY * row.get("wire_seconds",
                                                    float("inf")):
            busy += " (!)"
        lines.append("%-18s %9.3f %9.1f %12s %8s %14s %11s" % (
            row["name"], row["seconds"], row["sent"] / 1e6,
            on_lab.shown(row, "percent_over", "%.2f %%"),
            on_lab.shown(row, "link_efficiency", "%.2f"),
            on_lab.shown(row, "ratio_to_peer", "%.2fx"), busy))
    return "\n".join(lines)


def main(argv: List[str]) -> int:
    parser = on_lab.parser("exchange", __doc__, nodes=4, workers=1,
                           model="gpt2")
    parser.add_argument("--preset", action="append")
    parser.add_argument("--set", action="append", default=[], dest="settings",
                        metavar="KEY=VALUE", help="of each daemon's "
                        "configuration, like transport.gather=ring")
    parser.add_argument("--peer", choices=("gloo", "none"), default="gloo")
    options = parser.parse_args(argv)
    names = ["tcp"] if options.nodes > 1 else []
    if options.nodes > 2:
        names.append("tcp_all")
    if options.peer == "gloo":
        names += ["gloo_fp32", "gloo_fp16"]
    names += ["exchange/" + preset
              for preset in options.preset or PRESETS]
    result = on_lab.measured(
        names, nodes=options.nodes, workers=options.workers,
        rate=options.rate, settings=options.settings,
        **on_lab.model_of(options))
    rows = result["rows"]
    add_ratios(rows, os.cpu_count() or 1)
    print(on_lab.title(options, result))
    print(table(rows))
    for row in rows:
        if row.get("routes"):
            print("%s: %s" % (row["name"], row["routes"]))
    on_lab.write(options.json, rows)
    return on_lab.judge(rows)


if __name__ == "__main__":
    sys.exit(on_lab.main("exchange", lambda: main(sys.argv[1:])))
