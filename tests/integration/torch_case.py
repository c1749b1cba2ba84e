"""What the tests of ballast.torch.Optimizer share."""

import contextlib
import threading
import unittest

import lab

try:
    import torch
    from torch import nn
except ImportError:
    torch = None

if torch is not None and not lab.missing():
    import ballast
    import ballast.torch


def arrays(params):
    return {k: p.detach().numpy().copy() for k, p in params.items()}


def net(seed=1):
    """The same values for the same seed. PyTorch's generator is the whole
    process's: ranks that are threads would draw from each other's."""
    if threading.current_thread() is not threading.main_thread():
        raise AssertionError("build nets before the threads of the ranks")
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.BatchNorm1d(16),
                         nn.Linear(16, 3))


def batch(step, rows=8):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(rows, 6, generator=generator)


@unittest.skipIf(torch is None, "no torch")
class Base(lab.TestCase):

    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon()

    def optimizer(self, params, *arguments, rank=0, world=1, **options):
        options = dict(dict(job="job", address=self.daemon.address, lr=0.01,
                            timeout=lab.PATIENCE, rank=rank,
                            world_size=world), **options)
        result = ballast.torch.Optimizer(params, *arguments, **options)
        self.addCleanup(self._end, result)
        return result

    @staticmethod
    def _end(optimizer):
        with contextlib.suppress(ballast.Error):
            optimizer.close()
