"""Runs worker.py on a lab of its own and works with its rows; what the
benchmarks on a lab have in common."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, List, Optional, Sequence

_HERE = os.path.dirname(os.path.abspath(__file__))
_LAB = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "tools", "lab")

# The interface's bytes by the daemon's, where those are enough that votes and
# the measurement itself weigh nothing.
_MOST, _ENOUGH = 1.08, 16 << 20

Row = Dict[str, Any]


class LabFailed(Exception):
    """The lab has said why on stderr."""


def measured(rows: Sequence[str], *, nodes: int, workers: int,
             rate: Optional[str] = None, model: Optional[str] = None,
             elements: int = 0, steps: int = 3, repeats: int = 1000,
             settings: Sequence[str] = ()) -> Dict[str, Any]:
    """{"elements": …, "rows": [Row, …]}, as rank 0 of worker.py wrote them."""
    return run_worker(
        "worker.py", [*(["--model", model] if model else []),
                      "--elements", str(elements), "--steps", str(steps),
                      "--repeats", str(repeats)], rows,
        nodes=nodes, workers=workers, rate=rate, settings=settings)


def run_worker(script: str, arguments: Sequence[str], rows: Sequence[str], *,
               nodes: int, workers: int, rate: Optional[str] = None,
               settings: Sequence[str] = ()) -> Dict[str, Any]:
    """What rank 0 of `script` wrote to its --json, on a lab of its own, whose
    daemons are configured by `settings` too (KEY=VALUE)."""
    with tempfile.TemporaryDirectory(prefix="ballast-bench-") as folder:
        path = os.path.join(folder, "rows")
        command = [_LAB, "run", "--nodes", str(nodes), "--workers",
                   str(workers), *(["--rate", rate] if rate else []),
                   *(word for one in settings for word in ("--set", one)), "--",
                   "/usr/bin/python3", "-B", os.path.join(_HERE, script),
                   *arguments, "--json", path, *rows]
        code = subprocess.run(command, check=False,
                              stdout=sys.stderr).returncode
        if code != 0:
            raise LabFailed("the lab ended with %d" % code)
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)


def kept(folder: Optional[str], name: str, key: Dict[str, Any],
         make: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
    """make(), or what it gave before, from `folder` (None: nothing is kept).
    `key` is what the run is of: one that was made otherwise is refused."""
    if folder is None:
        return make()
    path = os.path.join(folder, re.sub(r"[^A-Za-z0-9.+-]", "_", name) +
                        ".json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as stream:
            run = json.load(stream)
        if run.get("of") != key:
            raise LabFailed(
                "%s holds a run of %s, wanted is %s: remove it or choose "
                "another folder" % (path, run.get("of"), key))
        return run
    run = {**make(), "of": key}
    os.makedirs(folder, exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as stream:
        json.dump(run, stream)
    os.replace(path + ".new", path)
    return run


def parser(name: str, text: str, *, nodes: int, workers: int,
           model: Optional[str] = None) -> argparse.ArgumentParser:
    """The arguments that all have; `model` if there is one to choose."""
    result = argparse.ArgumentParser(
        prog="tools/bench " + name, description=text, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--nodes", type=int, default=nodes)
    result.add_argument("--workers", type=int, default=workers)
    result.add_argument("--rate", metavar="R", help="of each link, like "
                        "1gbit; needs root")
    result.add_argument("--json", metavar="FILE")
    if model:
        which = result.add_mutually_exclusive_group()
        which.add_argument("--model", choices=(
            "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"))
        which.add_argument("--elements", type=int, default=0)
        result.add_argument("--steps", type=int, default=3)
        result.set_defaults(default_model=model)
    return result


def model_of(options: argparse.Namespace) -> Dict[str, Any]:
    """The model's part of the arguments of measured()."""
    return {"model": None if options.elements else
                     options.model or options.default_model,
            "elements": options.elements, "steps": options.steps}


def title(options: argparse.Namespace, result: Dict[str, Any]) -> str:
    return "%d nodes, %d workers each, %d elements, %s" % (
        options.nodes, options.workers, result["elements"],
        "links of " + options.rate if options.rate else "loopback")


def faults(rows: List[Row]) -> List[str]:
    """Rows whose link carried less than the payload, which went elsewhere, or
    more than the daemon's messages and what frames and acknowledgements add:
    what it counts is not all."""
    said = "%s: the interface sent %d bytes a step, the %s %d"
    wrong = []
    for row in rows:
        sent = row.get("tx_bytes")
        if sent is None:
            continue
        payload = row.get("payload_bytes", 0)
        wire = row.get("wire_bytes", 0)
        if sent < payload:
            wrong.append(said % (row["name"], sent, "payload has", payload))
        if wire >= _ENOUGH and sent > _MOST * wire:
            wrong.append(said % (row["name"], sent, "daemon counted", wire))
    return wrong


def unchecked(rows: List[Row]) -> List[str]:
    """Rows of which faults() can say nothing."""
    return [row["name"] for row in rows
            if "tx_bytes" not in row and row.get("payload_bytes", 0)]


def judge(rows: List[Row]) -> int:
    """The exit code; says what faults() finds and cannot look at."""
    wrong = faults(rows)
    for line in wrong:
        print("FAILED " + line)
    names = sorted(set(unchecked(rows)))
    if names:
        print("not checked, for lack of links that count (--rate), is whether "
              "all payload crossed them: %s" % ", ".join(names))
    return 1 if wrong else 0


def shown(row: Row, key: str, how: str) -> str:
    return how % row[key] if key in row else ""


def main(name: str, run: Callable[[], int]) -> int:
    """run(), with a lab's failure as a line and exit code 1."""
    try:
        return run()
    except LabFailed as error:
        print("tools/bench %s: %s" % (name, error), file=sys.stderr)
        return 1


def write(path: Optional[str], rows: List[Row]) -> None:
    if path:
        with open(path, "w", encoding="utf-8") as stream:
            json.dump(rows, stream, indent=1)
