"""tools/bench exchange: what a step's exchange costs, against a raw TCP
stream and PyTorch's Gloo all-reduce on the same links in the same run.

    tools/bench exchange [--nodes N] [--workers W] [--rate R]
        [--model gpt2|gpt2-medium|gpt2-large|gpt2-xl | --elements N]
        [--preset P]… [--steps K] [--peer gloo|none] [--json FILE]

A row is a mean over K steps after one that is not counted:

  seconds           of the slowest rank
  MB                that the busiest node's interface sent (tx_bytes), else
                    those the daemon counted
  of TCP            link_efficiency: bytes per second of the raw stream
  against Gloo      ratio_to_peer: Gloo fp32's seconds divided by these
  processor         seconds of all processes divided by the cores: the floor
                    of any row on one machine; above 60 % of the wire's time
                    the row measures the processor, not the link
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Dict, List

_HERE = os.path.dirname(os.path.abspath(__file__))
_LAB = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "tools", "lab")
_BUSY = 0.6


def measured(options: argparse.Namespace) -> Dict[str, Any]:
    """Runs the workers on a lab; what rank 0 wrote."""
    with tempfile.TemporaryDirectory(prefix="ballast-bench-") as folder:
        path = os.path.join(folder, "rows")
        what = ["--model", options.model] if options.model else \
            ["--elements", str(options.elements)]
        for preset in options.preset:
            what += ["--preset", preset]
        command = [_LAB, "run", "--nodes", str(options.nodes),
                   "--workers", str(options.workers)]
        if options.rate:
            command += ["--rate", options.rate]
        subprocess.run(
            command + ["--", "/usr/bin/python3", "-B",
                       os.path.join(_HERE, "exchange_worker.py"),
                       "--steps", str(options.steps), "--peer", options.peer,
                       "--json", path] + what,
            check=True, stdout=sys.stderr)
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)


def with_ratios(result: Dict[str, Any], cores: int) -> List[Dict[str, Any]]:
    """The rows with what follows from one another."""
    by_name = {row["name"]: row for row in result["rows"]}
    tcp, gloo = by_name.get("tcp"), by_name.get("gloo_fp32")
    for row in result["rows"]:
        row["processor_floor"] = row.pop("processor_seconds") / cores
        sent = row["tx_bytes"] or row.get("wire_bytes", row.get("bytes", 0))
        row["sent"] = sent
        if tcp and sent:
            rate = tcp["bytes"] / tcp["seconds"]
            row["link_efficiency"] = sent / row["seconds"] / rate
            row["wire_seconds"] = sent / rate
        if gloo and row is not tcp:
            row["ratio_to_peer"] = gloo["seconds"] / row["seconds"]
    return result["rows"]


def faults(rows: List[Dict[str, Any]]) -> List[str]:
    """Rows whose link carried less than the payload: they went elsewhere."""
    return ["%s: the interface sent %d bytes a step, the payload has %d" %
            (row["name"], row["tx_bytes"], row["payload_bytes"])
            for row in rows if row["tx_bytes"] and
            row["tx_bytes"] < row.get("payload_bytes", 0)]


def table(rows: List[Dict[str, Any]]) -> str:
    lines = ["%-18s %9s %9s %8s %14s %11s" % (
        "", "seconds", "MB", "of TCP", "against Gloo", "processor")]
    for row in rows:
        busy = "%.2f s" % row["processor_floor"]
        if row["processor_floor"] > _BUSY * row.get("wire_seconds",
                                                    float("inf")):
            busy += " (!)"
        lines.append("%-18s %9.3f %9.1f %8s %14s %11s" % (
            row["name"], row["seconds"], row["sent"] / 1e6,
            _shown(row, "link_efficiency", "%.2f"),
            _shown(row, "ratio_to_peer", "%.2fx"), busy))
    return "\n".join(lines)


def _shown(row: Dict[str, Any], key: str, how: str) -> str:
    return how % row[key] if key in row else ""


def parse(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/bench exchange", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rate")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", choices=(
        "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"))
    model.add_argument("--elements", type=int)
    parser.add_argument("--preset", action="append")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--peer", choices=("gloo", "none"), default="gloo")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    options.preset = options.preset or ["exact", "zeropp"]
    if not options.model and not options.elements:
        options.model = "gpt2"
    return options


def main(argv: List[str]) -> int:
    options = parse(argv)
    try:
        result = measured(options)
    except subprocess.CalledProcessError as error:
        print("tools/bench exchange: the lab ended with %d" %
              error.returncode, file=sys.stderr)
        return 1
    rows = with_ratios(result, os.cpu_count() or 1)
    print("%d nodes, %d workers each, %d elements, %s" % (
        options.nodes, options.workers, result["elements"],
        "links of " + options.rate if options.rate else "loopback"))
    print(table(rows))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as stream:
            json.dump(rows, stream, indent=1)
    wrong = faults(rows)
    for line in wrong:
        print("FAILED " + line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
