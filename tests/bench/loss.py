"""tools/bench loss: does quantizing the exchange cost loss?

    tools/bench loss [--seeds S] [--steps K] [--nodes N] [--workers W]
        [--preset P]… [--plot FILE.png] [--json FILE]

Trains the quickstart's GPT with every preset from the same S seeds: weights,
batches and learning rates of a seed are the same for all presets, so that the
differences are paired. The first preset (exact) is the ground of the
comparison. Final loss is that of the trained weights over 64 batches that are
the same for all runs.

A preset passes if its mean difference is at most the larger of two standard
errors and 0.5 % of the ground's loss.
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

import on_lab

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))
_TOLERANCE = 0.005
_SHOWN = 4000  # characters of a failed lab's output


class Summary(NamedTuple):
    preset: str
    loss: float          # mean over seeds
    difference: float    # mean of paired differences from the ground
    error: float         # their standard error
    megabytes: float     # per step and node
    passed: bool


def train(preset: str, seed: int,
          options: argparse.Namespace) -> Dict[str, Any]:
    """One run on a lab of its own; what rank 0 wrote."""
    with tempfile.TemporaryDirectory(prefix="ballast-loss-") as folder:
        path = os.path.join(folder, "run")
        done = subprocess.run(
            [os.path.join(_ROOT, "tools", "lab"), "run",
             "--nodes", str(options.nodes), "--workers", str(options.workers),
             "--", "/usr/bin/python3", "-B",
             os.path.join(_ROOT, "client/python/examples/train_gpt.py"),
             "--steps", str(options.steps), "--seed", str(seed),
             "--exchange", preset, "--every", str(options.steps),
             "--json", path],
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            encoding="utf-8")
        if done.returncode != 0:
            raise on_lab.LabFailed("%s, seed %d: the lab ended with %d\n%s" % (
                preset, seed, done.returncode, done.stdout[-_SHOWN:]))
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)


def summaries(runs: Dict[str, List[Dict[str, Any]]]) -> List[Summary]:
    """Of the runs of each preset, one per seed, in the same order."""
    ground = None
    result = []
    for preset, of_seed in runs.items():
        losses = np.array([run["evaluation"] for run in of_seed])
        if ground is None:
            ground = losses
        differences = losses - ground
        error = float(differences.std(ddof=1) / math.sqrt(len(losses))) \
            if len(losses) > 1 else math.inf
        mean = float(differences.mean())
        bound = max(2 * error, _TOLERANCE * float(ground.mean()))
        result.append(Summary(
            preset, float(losses.mean()), mean, error,
            float(np.mean([run["payload_bytes"] or 0 for run in of_seed])) /
            1e6, mean <= bound))
    return result


def table(rows: List[Summary]) -> str:
    ground = rows[0].loss
    lines = ["| preset | final loss | difference | standard error | MB per "
             "step, node | |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        lines.append("| `%s` | %.4f | %+.4f (%+.2f %%) | %.4f | %.3f | %s |" %
                     (row.preset, row.loss, row.difference,
                      100 * row.difference / ground, row.error,
                      row.megabytes, "" if row is rows[0] else
                      "within" if row.passed else "**worse**"))
    return "\n".join(lines)


def plot(runs: Dict[str, List[Dict[str, Any]]], path: str) -> None:
    """Loss against steps and against bytes, the mean over seeds."""
    # pylint: disable=import-outside-toplevel
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (by_step, by_bytes) = pyplot.subplots(
        1, 2, figsize=(11, 4.5), sharey=True)
    for preset, of_seed in runs.items():
        losses = np.mean([run["losses"] for run in of_seed], axis=0)
        width = max(1, len(losses) // 40)
        smooth = np.convolve(losses, np.ones(width) / width, "valid")
        steps = np.arange(width, len(losses) + 1)
        by_step.plot(steps, smooth, label=preset, linewidth=1)
        by_bytes.plot(steps * (of_seed[0]["payload_bytes"] or 0) / 1e6,
                      smooth, label=preset, linewidth=1)
    by_step.set(xlabel="step", ylabel="training loss")
    by_bytes.set(xlabel="MB that a node sent", xscale="log")
    by_step.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def parse(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/bench loss", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--preset", action="append")
    parser.add_argument("--plot", metavar="FILE.png",
                        help="needs Debian's python3-matplotlib")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    options.preset = options.preset or ["exact", "zeropp"]
    return options


def main(argv: List[str]) -> int:
    options = parse(argv)
    runs: Dict[str, List[Dict[str, Any]]] = {p: [] for p in options.preset}
    for seed in range(1, options.seeds + 1):
        for preset in options.preset:
            run = train(preset, seed, options)
            runs[preset].append(run)
            print("seed %d, %s: loss %.4f -> %.4f" % (
                seed, preset, run["first"], run["evaluation"]), flush=True)
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
