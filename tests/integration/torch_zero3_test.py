"""ballast.torch without resident weights: modules gather what they use, with
the same bits, within a bound that the model does not fit into."""

import copy
import sys
import unittest

import lab
import nodes

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    torch = None

if torch is not None and not lab.missing():
    import numpy as np
    import ballast
    import ballast.torch

_NONE = "exact secondary_partition=none"
_STEPS = 3
_WIDTH = 64


if torch is not None:
    class Net(nn.Module):
        """Ties, a parameter that another module uses, one without gradient,
        one of the root's own, a frozen one."""

        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(100, _WIDTH)
            self.positions = nn.Embedding(8, _WIDTH)
            self.scale = nn.Parameter(torch.ones(()))
            self.layers = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(_WIDTH),
                              nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(),
                              nn.Linear(4 * _WIDTH, _WIDTH))
                for _ in range(4))
            self.frozen = nn.Linear(_WIDTH, _WIDTH)
            self.frozen.requires_grad_(False)
            self.unused = nn.Linear(3, 3)
            self.head = nn.Linear(_WIDTH, 100, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, inputs, targets):
            x = self.tokens(inputs) + self.scale * self.positions.weight
            for layer in self.layers:
                x = x + layer(x)
            x = self.head(self.frozen(x))
            return functional.cross_entropy(x.flatten(0, 1),
                                            targets.flatten())


def seeded():
    torch.manual_seed(1)
    return Net()


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    data = torch.randint(100, (4, 9), generator=generator)
    return data[:, :-1], data[:, 1:]


@unittest.skipIf(torch is None, "no torch")
class Zero3Test(nodes.NodesCase):

    def optimizer(self, net, rank=0, **options):
        arguments = dict(
            lr=1e-2, weight_decay=0.1, job="zero3", rank=rank,
            world_size=len(self.daemons), local_rank=0, local_world_size=1,
            node_rank=rank, coordinator=self.coordinator, timeout=60,
            address=self.daemons[rank].address, bucket_bytes=16384,
            gradient_clipping=0.5, exchange=_NONE)
        arguments.update({"model": net, **options})
        return ballast.torch.Optimizer(
            [p for p in net.parameters() if p.requires_grad], "adamw",
            **arguments)

    def run_training(self, **options):
        """Losses, weights, most bytes held and the hooks' counts, by rank."""
        self.daemons = self.start_nodes(2)
        models = [seeded() for _ in range(2)]

        def worker(rank):
            model = models[rank]
            optimizer = self.optimizer(model, rank, **options)
            losses, most = [], 0
            for step in optimizer.steps(_STEPS):
                optimizer.zero_grad()
                loss = model(*batch(step, rank))
                most = max(most, self.held(optimizer))
                loss.backward()
                most = max(most, self.held(optimizer))
                optimizer.step()
                losses.append(loss.item())
            weights = optimizer.session.state_dict()
            counts = (getattr(optimizer._weights, "gathers", 0),
                      getattr(optimizer._weights, "prefetches", 0))
            optimizer.close()
            return losses, weights, most, counts

        return lab.run_ranks(2, worker)

    def held(self, optimizer):
        return int(optimizer.session.stats().get("gather", {}).get(
            "resident_bytes", 0))

    def test_the_same_bits_within_a_bound(self):  # I20, I25
        size = sum(p.numel() * 4 for p in Net().parameters())
        resident = self.run_training(exchange="exact")
        for cache in (0, 100_000):
            budget = 230_000
            self.assertLess(budget, size)
            gathered = self.run_training(
                exchange=_NONE + " resident_bytes=%d" % budget,
                gather_cache=cache)
            for rank in range(2):
                losses, weights, most, counts = gathered[rank]
                self.assertEqual(losses, resident[rank][0])
                for name, value in resident[rank][1].items():
                    self.assertEqual(np.asarray(value).tobytes(),
                                     np.asarray(weights[name]).tobytes(),
                                     name)
                self.assertLessEqual(most, budget)
                self.assertGreater(counts[1], 0)
        self.assertNotEqual(resident[0][0], resident[1][0])

    def one(self, **options):
        self.daemons = [self.start_daemon()]
        self.coordinator = None
        model = Net()
        return model, self.optimizer(model, **options)

    def refused(self, says, call, kind=None):
        self.assertRaisesWith(kind or ballast.FailedPrecondition, says, call)

    def test_what_is_not_here_is_no_number(self):
        model, optimizer = self.one()
        self.assertTrue(torch.isnan(model.frozen.weight).all())
        self.assertEqual(model.frozen.weight.shape, (_WIDTH, _WIDTH))
        with optimizer.gathered([model.frozen.weight]):
            self.assertFalse(torch.isnan(model.frozen.weight).any())
            self.assertTrue(torch.isnan(model.layers[0][1].weight).all())
        with optimizer.gathered():
            state = {k: v.clone() for k, v in model.state_dict().items()}
        self.assertFalse(any(torch.isnan(v).any() for v in state.values()))
        self.assertTrue(torch.isnan(model.frozen.weight).all())
        optimizer.close()

    def test_mistakes(self):
        model, optimizer = self.one()
        loss = model(*batch(1, 0))
        loss.backward(retain_graph=True)
        optimizer.step()
        # As autograd tells what its hooks raise.
        self.refused("weights of step 0, which are gone", loss.backward,
                     RuntimeError)
        optimizer.zero_grad()
        self.refused("outside of the model's forward",
                     lambda: model.frozen(torch.zeros(1, _WIDTH)))
        self.refused("cannot be copied", lambda: copy.deepcopy(model))
        self.refused("load them into the model before",
                     optimizer.load_weights)
        with torch.no_grad(), optimizer.gathered():
            model.scale.add_(1)
        self.refused("edited in place", lambda: model(*batch(2, 0)))
        optimizer.drop_edits()
        model(*batch(2, 0)).backward()
        optimizer.step()
        optimizer.close()
        self.refused("were given back when its job ended",
                     lambda: model(*batch(2, 0)))

    def test_combinations(self):
        self.daemons = [self.start_daemon()]
        self.coordinator = None
        invalid = ballast.InvalidArgument
        self.refused("needs model=",
                     lambda: self.optimizer(Net(), model=None), invalid)
        self.refused("overlap=True with secondary_partition",
                     lambda: self.optimizer(Net(), overlap=True), invalid)
        self.refused("gather_cache must be",
                     lambda: self.optimizer(Net(), gather_cache=-1), invalid)
        # A module that is larger than the bound: the daemon's own words.
        model = Net()
        optimizer = self.optimizer(model,
                                   exchange=_NONE + " resident_bytes=20000")
        self.refused(["of the 20000 that", "resident_bytes"],
                     lambda: model(*batch(1, 0)), ballast.ResourceExhausted)
        optimizer.close()


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
