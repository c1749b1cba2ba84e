"""Training through Ballast is training: what tools/bench training claims, on
two nodes, small. Four ways with the same data in the same order."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import lab
import nodes
from ballast import launch

try:
    import torch
except ImportError:
    torch = None

_BENCH = os.path.join(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))), "bench")
sys.path.append(_BENCH)
if not lab.missing():
    import training

_WORLD = 2


@unittest.skipIf(torch is None or not torch.distributed.is_available(),
                 "no torch with Gloo")
class TrainingTest(nodes.NodesCase):

    def setUp(self):
        super().setUp()
        scratch = tempfile.TemporaryDirectory(prefix="ballast-it-", dir="/tmp")
        self.addCleanup(scratch.cleanup)
        self.path = os.path.join(scratch.name, "run")
        self.daemons = self.start_nodes(_WORLD)
        self.runs = 0

    def train(self, task, way, seed, steps):
        """What rank 0 wrote; one worker on each node."""
        port = launch.free_port()
        self.runs += 1
        workers = []
        for rank in range(1 if way == "plain" else _WORLD):
            env = launch.worker_environment(
                rank=rank, world_size=_WORLD, local_rank=0,
                local_world_size=1, node_rank=rank,
                address=self.daemons[rank].address, master_port=port,
                job="job-%d" % self.runs)
            env["BALLAST_COORDINATOR"] = self.coordinator
            workers.append(subprocess.Popen(
                [sys.executable, os.path.join(_BENCH, "trainer.py"),
                 "--task", task, "--way", way, "--steps", str(steps),
                 "--seed", str(seed), "--ranks", str(_WORLD),
                 "--json", self.path], env=env, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True))
        try:
            outputs = [worker.communicate(timeout=3 * lab.PATIENCE)[0]
                       for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        for worker, output in zip(workers, outputs):
            self.assertEqual(worker.returncode, 0, output)
        with open(self.path, encoding="utf-8") as stream:
            return json.load(stream)

    def test_a_convolutional_net(self):
        runs = training.collect(
            lambda way, seed: self.train("conv", way, seed, 30), seeds=3)
        claims = training.claims(runs)
        self.assertEqual(claims.failed(), [])
        self.assertLess(runs["exact"][0]["losses"][-1],
                        0.7 * runs["exact"][0]["losses"][0])
        # delta4 is another path: it is not exact by mistake.
        self.assertGreater(
            training.distance(runs["delta4"], runs["exact"]), 1e-4)

    def test_a_transformer(self):
        runs = {way: [self.train("gpt", way, 1, 12)]
                for way in ("ddp", "exact")}
        self.assertLess(training.distance(runs["exact"], runs["ddp"]), 1e-4)
        other = self.train("gpt", "exact", 2, 12)
        self.assertGreater(training.distance([other], runs["ddp"]), 1e-3)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
