"""tools/bench training: is training through Ballast training?

    tools/bench training [--seeds S] [--steps K] [--nodes N] [--workers W]
        [--task gpt|conv]… [--keep FOLDER] [--plot FILE.png] [--json FILE]

Trains the quickstart's GPT and a convolutional net with BatchNorm in four
ways, from the same S seeds with the same data in the same order: in one plain
process, by PyTorch's DistributedDataParallel over Gloo, and through Ballast
with exact and with delta4. What is claimed, and fails the program if it is
not so:

  exact    within float rounding of DDP: over all steps, the root mean square
           of the differences of losses is at most 0.1 % of the mean loss, or
           twice what it is between the plain process and DDP. These two do
           the same sums in different order and nothing else; where a maximum
           or a ReLU is a close call, training itself makes much of the last
           bit, sooner or later.
  delta4   within the noise of seeds: its final loss is above exact's, in the
           mean, by at most one standard deviation of exact's own final losses
           over the seeds.
  control  another seed is farther from DDP than exact may be.

The first steps at which exact and plain are more than a millionth of the loss
away from DDP are told, too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, List, NamedTuple

import numpy as np

import curves
import on_lab

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))
_ROUNDING = 1e-3
_LAST_BITS = 1e-6
_SHOWN = 4000  # characters of a failed run's output

WAYS = ("plain", "ddp", "exact", "delta4")
Runs = Dict[str, List[Dict[str, Any]]]  # way -> one run per seed


class Claims(NamedTuple):
    """Of one task; distances are relative to DDP's mean loss."""
    plain: float        # distance of the plain process from DDP
    exact: float        # of exact from DDP
    other_seed: float   # of exact's next seed from DDP, the control
    delta4: float       # mean difference of final losses from exact's
    noise: float        # standard deviation of exact's final losses

    def failed(self) -> List[str]:
        result = []
        bound = max(_ROUNDING, 2 * self.plain)
        if self.exact > bound:
            result.append("exact is %.2g of the loss from DDP, more than %.2g"
                          % (self.exact, bound))
        if self.other_seed <= bound:
            result.append("another seed is only %.2g of the loss from DDP: "
                          "nothing could fail" % self.other_seed)
        if self.delta4 > self.noise:
            result.append("delta4 is %+.4f from exact, seeds vary by %.4f" %
                          (self.delta4, self.noise))
        return result


def distance(runs: List[Dict[str, Any]],
             others: List[Dict[str, Any]]) -> float:
    """Root mean square of the differences of all losses, of others' mean."""
    ours = np.array([run["losses"] for run in runs])
    theirs = np.array([run["losses"] for run in others])
    return float(np.sqrt(np.mean((ours - theirs)**2)) / np.mean(theirs))


def parts_at(runs: List[Dict[str, Any]], others: List[Dict[str, Any]]) -> int:
    """The first step, of any seed, with losses that differ by more than a
    millionth; 0: none."""
    ours = np.array([run["losses"] for run in runs])
    theirs = np.array([run["losses"] for run in others])
    is_apart = (np.abs(ours - theirs) > _LAST_BITS * theirs).any(axis=0)
    return int(np.argmax(is_apart)) + 1 if is_apart.any() else 0


def claims(runs: Runs) -> Claims:
    final = {way: np.array([run["evaluation"] for run in of_seed])
             for way, of_seed in runs.items()}
    exact = runs["exact"]
    return Claims(
        distance(runs["plain"], runs["ddp"]), distance(exact, runs["ddp"]),
        distance(exact[1:] + exact[:1], runs["ddp"]),
        float(np.mean(final["delta4"] - final["exact"])),
        float(final["exact"].std(ddof=1)))


def collect(run: Callable[[str, int], Dict[str, Any]], seeds: int) -> Runs:
    runs: Runs = {way: [] for way in WAYS}
    for seed in range(1, seeds + 1):
        for way in WAYS:
            runs[way].append(run(way, seed))
    return runs


def train(task: str, way: str, seed: int,
          options: argparse.Namespace) -> Dict[str, Any]:
    """One run, on a lab of its own."""
    with tempfile.TemporaryDirectory(prefix="ballast-training-") as folder:
        path = os.path.join(folder, "run")
        command = ["/usr/bin/python3", "-B",
                   os.path.join(_HERE, "trainer.py"), "--task", task,
                   "--way", way, "--steps", str(options.steps),
                   "--seed", str(seed), "--json", path,
                   "--ranks", str(options.nodes * options.workers)]
        environment = dict(os.environ, PYTHONPATH=os.path.join(
            _ROOT, "client", "python"))
        if way != "plain":
            command = [os.path.join(_ROOT, "tools", "lab"), "run", "--nodes",
                       str(options.nodes), "--workers", str(options.workers),
                       "--", *command]
        done = subprocess.run(command, check=False, env=environment,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, encoding="utf-8")
        if done.returncode != 0:
            raise on_lab.LabFailed("%s, %s, seed %d ended with %d\n%s" % (
                task, way, seed, done.returncode, done.stdout[-_SHOWN:]))
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)


def kept(task: str, way: str, seed: int,
         options: argparse.Namespace) -> Dict[str, Any]:
    key = {"task": task, "way": way, "seed": seed, "steps": options.steps,
           "nodes": options.nodes, "workers": options.workers}
    run = on_lab.kept(options.keep, "%s-%s-%d" % (task, way, seed), key,
                      lambda: train(task, way, seed, options))
    print("%s, seed %d, %s: loss %.4f -> %.4f" % (
        task, seed, way, run["losses"][0], run["evaluation"]), flush=True)
    return run


def table(of_task: Dict[str, Runs]) -> str:
    lines = ["| task | way | final loss | distance from DDP | from step |",
             "| --- | --- | --- | --- | --- |"]
    for task, runs in of_task.items():
        for way, of_seed in runs.items():
            lines.append("| %s | %s | %.4f | %s | %s |" % (
                task, way if way in ("plain", "ddp") else "`%s`" % way,
                np.mean([run["evaluation"] for run in of_seed]),
                "" if way == "ddp" else
                "%.2g" % distance(of_seed, runs["ddp"]),
                "" if way == "ddp" else
                parts_at(of_seed, runs["ddp"]) or "–"))
    return "\n".join(lines)


def parse(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/bench training", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--task", action="append", choices=("gpt", "conv"))
    parser.add_argument("--keep", metavar="FOLDER", help="of runs, as for "
                        "loss")
    parser.add_argument("--plot", metavar="FILE.png",
                        help="needs Debian's python3-matplotlib")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    options.task = options.task or ["gpt", "conv"]
    if options.seeds < 2:
        parser.error("--seeds must be at least 2: their noise is the measure")
    return options


def main(argv: List[str]) -> int:
    options = parse(argv)
    of_task = {task: collect(
        lambda way, seed, task=task: kept(task, way, seed, options),
        options.seeds) for task in options.task}
    print("%d nodes, %d workers each, %d steps, %d seeds" % (
        options.nodes, options.workers, options.steps, options.seeds))
    print(table(of_task))
    result = {task: claims(runs) for task, runs in of_task.items()}
    failed = []
    for task, one in result.items():
        print("%s: exact %.2g of the loss from DDP (plain %.2g, another seed "
              "%.2g); delta4 %+.4f from exact, seeds vary by %.4f" % (
                  task, one.exact, one.plain, one.other_seed, one.delta4,
                  one.noise))
        failed += ["FAILED %s: %s" % (task, why) for why in one.failed()]
    print("\n".join(failed), end="\n" if failed else "")
    if options.plot:
        curves.draw([curves.Panel(task, [
            curves.Curve(way, [run["losses"] for run in of_seed])
            for way, of_seed in runs.items()])
            for task, runs in of_task.items()], options.plot)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as stream:
            json.dump([{"name": "training/" + task, **one._asdict()}
                       for task, one in result.items()], stream, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(on_lab.main("training", lambda: main(sys.argv[1:])))
