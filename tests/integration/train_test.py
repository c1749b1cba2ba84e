"""The quickstart's job: a GPT in PyTorch through a real daemon."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

import lab

try:
    import torch
except ImportError:
    torch = None

_WORKERS = 2
_STEPS = 30


@unittest.skipIf(torch is None, "no torch")
class TrainTest(lab.TestCase):

    def setUp(self):
        super().setUp()
        scratch = tempfile.TemporaryDirectory(prefix="ballast-it-", dir="/tmp")
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name
        self.script = os.environ["BALLAST_TRAIN_GPT"]

    def run_it(self, command):
        env = dict(os.environ, BALLAST_LAB_DIR=self.directory,
                   OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        env.pop("BALLAST_ADDRESS", None)
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True,
                              timeout=5 * lab.PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def train(self, *options):
        path = os.path.join(self.directory, "result.json")
        output = self.run_it(
            [sys.executable, "-m", "ballast.run", "--workers", str(_WORKERS),
             *options, self.script, "--steps", str(_STEPS), "--json", path])
        with open(path) as stream:
            return output, json.load(stream)

    def digests(self, output):
        found = dict(re.findall(r"rank (\d+) digest ([0-9a-f]{64})", output))
        self.assertEqual(sorted(found), [str(r) for r in range(_WORKERS)])
        return set(found.values())

    def test_learns_as_pytorch_alone_and_repeats_its_bits(self):
        output, result = self.train()
        digests = self.digests(output)
        self.assertEqual(len(digests), 1)  # I25
        self.assertEqual(self.digests(self.train()[0]), digests)
        first, last = map(float, re.search(
            r"loss ([0-9.]+) -> ([0-9.]+)", output).groups())
        self.assertLess(last, 0.85 * first)
        path = os.path.join(self.directory, "baseline.json")
        self.run_it([sys.executable, self.script, "--steps", str(_STEPS),
                     "--baseline", str(_WORKERS), "--json", path])
        with open(path) as stream:
            baseline = json.load(stream)
        self.assertEqual(len(result["losses"]), _STEPS)
        for ours, theirs in zip(result["losses"], baseline["losses"]):
            self.assertLess(abs(ours - theirs), 0.005 * theirs)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
