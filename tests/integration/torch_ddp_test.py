"""Training through Ballast is training with DistributedDataParallel: the same
losses within float rounding, a convolutional net with BatchNorm included."""

import json
import subprocess
import sys
import unittest

import lab
from ballast import launch

try:
    import torch
except ImportError:
    torch = None

_WORLD = 2
_STEPS = 25
# What both scripts share; the batches are functions of (step, rank).
_COMMON = """
import json, os, sys
import torch
from torch import nn
from torch.nn import functional
torch.set_num_threads(1)
torch.manual_seed(3)
rank = int(os.environ["RANK"])

def build():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))

def batch(step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    labels = torch.randint(4, (16,), generator=generator)
    images = torch.randn(16, 1, 8, 8, generator=generator)
    images[:, 0, :4, :4] += 2 * (labels % 2).view(-1, 1, 1)
    images[:, 0, 4:, 4:] += 2 * (labels // 2).view(-1, 1, 1)
    return images, labels

def train(model, optimizer, steps):
    losses = []
    for step in range(steps):
        images, labels = batch(step)
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print("LOSSES " + json.dumps(losses), flush=True)
"""
_BALLAST = _COMMON + """
import ballast.torch
model = build()
optimizer = ballast.torch.Optimizer(
    model.parameters(), torch.optim.AdamW, lr=1e-2, model=model,
    overlap=sys.argv[2] == "overlap")
train(model, optimizer, int(sys.argv[1]))
optimizer.close()
"""
_DDP = _COMMON + """
from torch import distributed
distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(build(), broadcast_buffers=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
train(model, optimizer, int(sys.argv[1]))
distributed.destroy_process_group()
"""
_ALONE = _COMMON + """
model = build()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
train(model, optimizer, int(sys.argv[1]))
"""


@unittest.skipIf(torch is None or not torch.distributed.is_available(),
                 "no torch with Gloo")
class DdpTest(lab.TestCase):

    def run_it(self, script, *arguments, address=""):
        """Losses per rank."""
        port = launch.free_port()
        workers = []
        for rank in range(_WORLD):
            env = launch.worker_environment(
                rank=rank, world_size=_WORLD, local_rank=rank,
                local_world_size=_WORLD, node_rank=0, address=address,
                master_port=port, job="ddp")
            workers.append(subprocess.Popen(
                [sys.executable, "-c", script, str(_STEPS), *arguments],
                env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True))
        outputs = []
        for worker in workers:
            try:
                outputs.append(worker.communicate(timeout=2 * lab.PATIENCE)[0])
            finally:
                worker.kill()
        result = []
        for worker, output in zip(workers, outputs):
            self.assertEqual(worker.returncode, 0, output)
            result.append(json.loads(
                output.split("LOSSES ")[1].split("\n")[0]))
        return result

    def largest_difference(self, ours, theirs):
        return max(abs(a - b) for one, other in zip(ours, theirs)
                   for a, b in zip(one, other))

    def test_losses_are_ddps(self):
        theirs = self.run_it(_DDP)
        self.assertLess(theirs[0][-1], 0.8 * theirs[0][0])
        daemon = self.start_daemon()
        for mode in ("plain", "overlap"):
            with self.subTest(mode):
                ours = self.run_it(_BALLAST, mode, address=daemon.address)
                self.assertLess(self.largest_difference(ours, theirs), 1e-4)
        # Negative control: without the exchange they differ.
        self.assertGreater(
            self.largest_difference(self.run_it(_ALONE), theirs), 2e-2)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
