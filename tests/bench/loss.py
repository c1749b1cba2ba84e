"""tools/bench loss: does quantizing the exchange cost loss?

    tools/bench loss [--seeds S] [--steps K] [--nodes N] [--workers W]
        [--preset NAME]… [--keep FOLDER] [--plot FILE.png] [--json FILE]

Trains the quickstart's GPT with every exchange from the same S seeds: weights,
batches and learning rates of a seed are the same for all, so that the
differences are paired. The first (exact) is the ground of the comparison.
Final loss is that of the trained weights over 64 batches that are the same
for all runs. The names, and what is expected of each:

{names}

"within": the mean difference is at most the larger of two standard errors and
0.5 % of the ground's loss; the program fails if it is more. "worse": the
control, which fails the program if it is within. NAME may also be a policy's
text, as in "zeropp gradients.block=64", of which nothing is expected.

--keep writes what each run saw to FOLDER and takes from there the runs that
are there already, so that a study may be cut and go on, or be read when a
part of it is done (a smaller --seeds).
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, NamedTuple

import numpy as np

import curves
import on_lab

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))
_TOLERANCE = 0.005
_SHOWN = 4000  # characters of a failed lab's output


class Way(NamedTuple):
    exchange: str      # the policy
    expected: str      # "within", "worse", or "": it is only told
    has_hop: bool = False


WAYS = {
    "exact": Way("exact", "within"),
    "zeropp": Way("zeropp", "within"),
    "zeropp+hop1": Way("zeropp", "", True),
    "delta4": Way("delta4", "within"),
    "delta4-plain": Way("delta4 gradients.hadamard=0", ""),
    "delta2": Way("delta2", ""),
    "value4": Way("delta4 weights.mode=value", ""),
    "int4-weights": Way("weights.codec=int4 weights.block=2048", "worse"),
}
_TOLD = {
    "zeropp+hop1": "zeropp with ZeRO++'s int4 hop inside the node",
    "delta4-plain": "delta4 without the Hadamard rotation",
    "value4": "delta4 with the weights themselves as int4",
    "int4-weights": "all weights as int4, small tensors too, exact gradients",
}


class Summary(NamedTuple):
    preset: str
    loss: float          # mean over seeds
    difference: float    # mean of paired differences from the ground
    error: float         # their standard error
    megabytes: float     # per step and node
    is_within: bool
    expected: str

    @property
    def passed(self) -> bool:
        return not self.expected or \
            self.is_within == (self.expected == "within")


def way_of(name: str) -> Way:
    return WAYS.get(name) or Way(name, "")


def train(name: str, seed: int, options: argparse.Namespace) -> Dict[str, Any]:
    """One run on a lab of its own; what rank 0 wrote."""
    way = way_of(name)
    with tempfile.TemporaryDirectory(prefix="ballast-loss-") as folder:
        path = os.path.join(folder, "run")
        done = subprocess.run(
            [os.path.join(_ROOT, "tools", "lab"), "run",
             "--nodes", str(options.nodes), "--workers", str(options.workers),
             "--", "/usr/bin/python3", "-B",
             os.path.join(_HERE, "loss_worker.py"),
             "--steps", str(options.steps), "--seed", str(seed),
             "--exchange", way.exchange, "--every", str(options.steps),
             "--json", path, *(["--hop1"] if way.has_hop else [])],
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            encoding="utf-8")
        if done.returncode != 0:
            raise on_lab.LabFailed("%s, seed %d: the lab ended with %d\n%s" % (
                name, seed, done.returncode, done.stdout[-_SHOWN:]))
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)


def kept(name: str, seed: int, options: argparse.Namespace) -> Dict[str, Any]:
    way = way_of(name)
    key = {"exchange": way.exchange, "hop1": way.has_hop, "seed": seed,
           "steps": options.steps, "nodes": options.nodes,
           "workers": options.workers}
    return on_lab.kept(options.keep, "%s-%d" % (name, seed), key,
                       lambda: train(name, seed, options))


def summaries(runs: Dict[str, List[Dict[str, Any]]]) -> List[Summary]:
    """Of the runs of each name, one per seed, in the same order."""
    ground = None
    result = []
    for name, of_seed in runs.items():
        losses = np.array([run["evaluation"] for run in of_seed])
        if ground is None:
            ground = losses
        differences = losses - ground
        error = float(differences.std(ddof=1) / math.sqrt(len(losses))) \
            if len(losses) > 1 else math.inf
        mean = float(differences.mean())
        bound = max(2 * error, _TOLERANCE * float(ground.mean()))
        result.append(Summary(
            name, float(losses.mean()), mean, error,
            float(np.mean([run["payload_bytes"] or 0 for run in of_seed])) /
            1e6, mean <= bound, way_of(name).expected))
    return result


def table(rows: List[Summary]) -> str:
    ground = rows[0].loss
    lines = ["| exchange | final loss | difference | standard error | MB per "
             "step, node | | expected |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        lines.append(
            "| `%s` | %.4f | %+.4f (%+.2f %%) | %.4f | %.3f | %s | %s |" %
            (row.preset, row.loss, row.difference,
             100 * row.difference / ground, row.error, row.megabytes,
             "" if row is rows[0] else
             "within" if row.is_within else "**worse**",
             "" if row is rows[0] else row.expected or "–"))
    return "\n".join(lines)


def plot(runs: Dict[str, List[Dict[str, Any]]], path: str) -> None:
    """Loss against steps and against bytes, the mean over seeds."""
    lines = [curves.Curve(name, [run["losses"] for run in of_seed],
                          (of_seed[0]["payload_bytes"] or 0) / 1e6)
             for name, of_seed in runs.items()]
    curves.draw([curves.Panel("by step", lines),
                 curves.Panel("by bytes", lines, is_by_bytes=True)], path)


def described() -> str:
    return __doc__.replace("{names}", "\n".join(
        "  %-13s %-7s %s" % (name, way.expected or "–",
                              _TOLD.get(name, "the preset"))
        for name, way in WAYS.items()))


def parse(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/bench loss", description=described(), allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--preset", action="append", metavar="NAME")
    parser.add_argument("--keep", metavar="FOLDER")
    parser.add_argument("--plot", metavar="FILE.png",
                        help="needs Debian's python3-matplotlib")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    options.preset = options.preset or list(WAYS)
    return options


def main(argv: List[str]) -> int:
    options = parse(argv)
    runs: Dict[str, List[Dict[str, Any]]] = {name: [] for name in options.preset}
    for seed in range(1, options.seeds + 1):
        for name in options.preset:
            run = kept(name, seed, options)
            runs[name].append(run)
            print("seed %d, %s: loss %.4f -> %.4f" % (
                seed, name, run["first"], run["evaluation"]), flush=True)
    rows = summaries(runs)
    print("%d nodes, %d workers each, %d steps, %d seeds" % (
        options.nodes, options.workers, options.steps, options.seeds))
    print(table(rows))
    if options.plot:
        plot(runs, options.plot)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as stream:
            json.dump([{**row._asdict(), "name": "loss/" + row.preset}
                       for row in rows], stream, indent=1)
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(on_lab.main("loss", lambda: main(sys.argv[1:])))
