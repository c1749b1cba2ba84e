"""Buffers of a model: rank 0's are committed, and all ranks have them."""

import sys
import tempfile
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

_STEPS = 4


def net():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(),
                          nn.BatchNorm1d(8), nn.Linear(8, 3))
    model.register_buffer("constant", torch.arange(3.0))
    return model


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 6, generator=generator) + rank


def buffers_of(model):
    return {name: value.clone() for name, value in model.named_buffers()}


@unittest.skipIf(torch is None, "no torch")
class BuffersTest(lab.TestCase):

    def setUp(self):
        super().setUp()
        scratch = tempfile.TemporaryDirectory(prefix="ballast-it-", dir="/tmp")
        self.addCleanup(scratch.cleanup)
        self.daemon = self.start_daemon("snapshots.directory=" + scratch.name)

    def optimizer(self, model, rank, world=2, **options):
        return ballast.torch.Optimizer(
            model.parameters(), "sgd", lr=0.05, model=model,
            address=self.daemon.address, timeout=lab.PATIENCE, rank=rank,
            world_size=world, **dict(dict(job="job"), **options))

    def train(self, model, optimizer, rank, steps):
        """The buffers after each step."""
        seen = []
        for step in optimizer.steps(steps):
            model(batch(step, rank)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(buffers_of(model))
        return seen

    def run_ranks(self, steps=_STEPS, world=2, leave=None, **options):
        models = [net() for _ in range(world)]

        def rank(number):
            optimizer = self.optimizer(models[number], number, world,
                                       **options)
            first = buffers_of(models[number])
            seen = self.train(models[number], optimizer, number, steps)
            if leave is not None:
                leave(optimizer)
            else:
                optimizer.close()
            return [first] + seen
        return lab.run_ranks(world, rank)

    def assertSame(self, ours, theirs):
        self.assertEqual(set(ours), set(theirs))
        for name, value in theirs.items():
            self.assertTrue(torch.equal(ours[name], value), name)

    def assertSameRuns(self, ours, theirs):
        self.assertEqual(len(ours), len(theirs))
        for one, other in zip(ours, theirs):
            self.assertSame(one, other)

    def test_after_each_step_they_are_rank_0s(self):  # I25
        own = self.run_ranks(buffers="cursor")
        self.assertRaises(AssertionError, self.assertSameRuns, own[0],
                          own[1])  # the control
        for options in ({}, {"overlap": True}):
            with self.subTest(options):
                ours = self.run_ranks(**options)
                self.assertSameRuns(ours[0], ours[1])
                # What rank 0 sees does not depend on the others.
                self.assertSameRuns(ours[0], own[0])

    def test_whoever_comes_again_has_rank_0s(self):  # I20
        expected = self.run_ranks()
        for stop in (2, _STEPS):
            ours = self.run_ranks(
                stop, leave=lambda o: o.detach() if stop < _STEPS
                else o.close())
            first = 0 if stop == 2 else 2
            for number in range(2):
                self.assertSameRuns(ours[number],
                                    expected[0][first:stop + 1])

    def test_more_ranks_than_were_saved_have_them_too(self):  # I17
        saved = self.run_ranks(2, leave=lambda o: (
            o.save("kept") if o.session.rank == 0 else None, o.close()))
        ours = self.run_ranks(2, world=3, job="other", load="job/kept")
        for number in range(3):
            self.assertSame(ours[number][0], saved[0][-1])

    def test_too_many_are_told_to_all_ranks(self):  # I23
        models = [net(), net()]

        def rank(number):
            model = models[number]
            model.register_buffer("table", torch.zeros(20000))
            optimizer = self.optimizer(model, number)
            model.table.add_(1)
            optimizer.zero_grad()
            self.assertRaisesWith(
                ballast.ResourceExhausted,
                ["at most 65536", "buffers=\"local\""], optimizer.step)
            optimizer.close()
        lab.run_ranks(2, rank)

    def test_what_is_no_choice_is_refused(self):
        self.assertRaisesWith(
            ballast.InvalidArgument, ["buffers must be", "\"rank0\"", "all"],
            lambda: self.optimizer(net(), 0, 1, buffers="all"))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
