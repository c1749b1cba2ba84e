"""ballast.torch.Optimizer with a real daemon: PyTorch's numbers, PyTorch's
manners."""

import copy
import io
import pickle
import sys
import unittest
import unittest.mock

import lab
import torch_case

try:
    import torch
    from torch import nn
except ImportError:
    torch = None

if torch is not None and not lab.missing():
    import numpy as np
    import ballast
    import ballast.torch
    from ballast import groups
    from ballast.torch import _weights

_STEPS = 100
_TOLERANCE = 1e-6
_SHAPES = {"wte": (64, 48), "bias": (48,), "scale": (), "odd": (3, 5, 7)}


def recorded(rank=0):
    """Initial values and the gradients of all steps of one rank."""
    random = np.random.RandomState(1)
    initial = {k: np.array(random.randn(*s), np.float32)
               for k, s in _SHAPES.items()}
    random = np.random.RandomState(2 + rank)
    gradients = [{k: np.array(random.randn(*s) * 10**random.uniform(-4, 0),
                              np.float32) for k, s in _SHAPES.items()}
                 for _ in range(_STEPS)]
    return initial, gradients


def distance(ours, theirs):
    return max(np.linalg.norm(np.float64(ours[k]) - np.float64(theirs[k])) /
               np.linalg.norm(np.float64(theirs[k])) for k in theirs)


def parameters(initial):
    return {k: nn.Parameter(torch.from_numpy(v.copy()))
            for k, v in initial.items()}


def feed(params, optimizer, gradients, lr):
    for index, step in enumerate(gradients):
        optimizer.param_groups[0]["lr"] = lr * (1 + index) / _STEPS
        for name, parameter in params.items():
            parameter.grad = torch.from_numpy(step[name].copy())
        optimizer.step()


class ParityTest(torch_case.Base):
    """Both are fed one recorded gradient sequence."""

    CASES = [
        ("SGD", dict(lr=0.05)),
        ("SGD", dict(lr=0.05, momentum=0.9, dampening=0.3)),
        ("SGD", dict(lr=0.05, momentum=0.9, nesterov=True,
                     weight_decay=0.01)),
        ("Adam", dict(lr=1e-3, betas=(0.8, 0.95), weight_decay=0.1)),
        ("AdamW", dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-6,
                       weight_decay=0.1)),
    ]
    if torch is not None and not lab.missing() and \
            "adagrad" in groups.OPTIMIZERS:
        CASES += [("Adagrad", dict(lr=0.05)),
                  ("Adagrad", dict(lr=0.05, lr_decay=0.1, weight_decay=0.01,
                                   initial_accumulator_value=0.5))]

    def ours(self, name, hyper, rank=0, world=1, gradients=None, **options):
        initial, own = recorded(rank)
        params = parameters(initial)
        optimizer = self.optimizer(
            params.items(), getattr(torch.optim, name), rank=rank,
            world=world, **{"job": "%s-%d" % (name.lower(), world),
                            **hyper, **options})
        feed(params, optimizer, gradients or own, hyper["lr"])
        optimizer.close()
        return torch_case.arrays(params)

    def theirs(self, name, hyper):
        initial, gradients = recorded()
        params = parameters(initial)
        feed(params, getattr(torch.optim, name)(params.values(), **hyper),
             gradients, hyper["lr"])
        return torch_case.arrays(params)

    def test_equals_pytorch_after_100_steps(self):
        for name, hyper in self.CASES:
            with self.subTest(name, **hyper):
                self.assertLess(distance(self.ours(name, hyper),
                                         self.theirs(name, hyper)), _TOLERANCE)

    def test_sees_a_wrong_hyperparameter(self):  # negative control
        hyper = dict(lr=1e-3, weight_decay=0.1)
        self.assertGreater(
            distance(self.ours("AdamW", dict(hyper, weight_decay=0.101)),
                     self.theirs("AdamW", hyper)), _TOLERANCE)

    def test_same_bits_with_one_rank_and_with_four(self):  # I8, I25
        hyper = dict(lr=1e-3, weight_decay=0.1)
        _, gradients = recorded()
        alone = self.ours("AdamW", hyper)
        for other in lab.run_ranks(4, lambda rank: self.ours(
                "AdamW", hyper, rank, 4, gradients)):
            for name in alone:
                self.assertBitsEqual(other[name], alone[name], name)


    def test_same_bits_on_one_node_and_on_two(self):  # I8, I25
        hyper = dict(lr=1e-3, weight_decay=0.1)
        together = lab.run_ranks(4, lambda rank: self.ours(
            "AdamW", hyper, rank, 4))
        ports = [lab.launch.free_port() for _ in range(2)]
        peers = ["127.0.0.1:%d" % port for port in ports]
        daemons = [self.start_daemon("listen.peer=" + peer,
                                     "transport.ucx_devices=lo")
                   for peer in peers]
        apart = lab.run_ranks(4, lambda rank: self.ours(
            "AdamW", hyper, rank, 4, job="apart", local_world_size=2,
            address=daemons[rank // 2].address, coordinator=peers[0]))
        for rank in range(4):
            for name in _SHAPES:
                self.assertBitsEqual(apart[rank][name], together[0][name])

    def test_lion_equals_its_paper(self):
        if "lion" not in groups.OPTIMIZERS:
            self.skipTest("the daemon has no lion")
        hyper = dict(lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
        initial, gradients = recorded()
        params = parameters(initial)
        optimizer = self.optimizer(params.items(), "lion", **hyper)
        feed(params, optimizer, gradients, hyper["lr"])
        expected = {k: np.float64(v) for k, v in initial.items()}
        moments = {k: np.zeros_like(v) for k, v in expected.items()}
        for index, step in enumerate(gradients):
            rate = hyper["lr"] * (1 + index) / _STEPS
            for name, gradient in step.items():
                gradient = np.float64(gradient)
                update = np.sign(0.9 * moments[name] + 0.1 * gradient)
                expected[name] = expected[name] * (1 - rate * 0.1) \
                    - rate * update
                moments[name] = 0.99 * moments[name] + 0.01 * gradient
        self.assertLess(distance(torch_case.arrays(params), expected),
                        _TOLERANCE)


class WeightsTest(torch_case.Base):

    def setUp(self):
        super().setUp()
        self.model = torch_case.net()

    def train(self, optimizer, steps=1):
        for step in range(steps):
            self.model(torch_case.batch(step)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    def test_a_parameter_has_its_own_storage(self):
        optimizer = self.optimizer(self.model.parameters())
        self.train(optimizer)
        stream = io.BytesIO()
        torch.save(self.model[0].weight, stream)
        self.assertLess(len(stream.getvalue()), 4 * 96 + 1000)
        self.assertEqual(self.model[0].weight.storage().nbytes(), 4 * 96)

    def test_values_stay_and_change_by_steps_only(self):
        before = [p.detach().clone() for p in self.model.parameters()]
        optimizer = self.optimizer(self.model.parameters())
        for was, now in zip(before, self.model.parameters()):
            self.assertTrue(torch.equal(was, now))
        self.train(optimizer)
        self.assertFalse(torch.equal(before[0], self.model[0].weight))

    def test_a_graph_of_older_weights_raises_pytorchs_error(self):  # I1
        optimizer = self.optimizer(self.model.parameters())
        old = self.model(torch_case.batch(0)).pow(2).mean()
        self.train(optimizer)
        with self.assertRaisesRegex(RuntimeError, "inplace operation"):
            old.backward()

    def test_an_edit_is_refused_and_can_be_dropped(self):
        optimizer = self.optimizer(self.model.parameters())
        self.train(optimizer)
        published = self.model[3].weight.detach().clone()
        with torch.no_grad():
            self.model[3].weight.mul_(2)
        self.assertRaisesWith(
            ballast.FailedPrecondition,
            ["'g0.p4'", "edited in place", "optimizer.load_weights()",
             "drop_edits"], optimizer.step)
        optimizer.drop_edits()
        self.assertTrue(torch.equal(published, self.model[3].weight))
        self.train(optimizer)

    def test_an_edit_is_noticed_by_the_next_forward(self):
        optimizer = self.optimizer(self.model.parameters(), model=self.model)
        self.model.load_state_dict(torch_case.net(2).state_dict())
        self.assertRaisesWith(ballast.FailedPrecondition,
                              ["'0.weight'", "load_state_dict",
                               "load_weights()"],
                              lambda: self.model(torch_case.batch(0)))
        optimizer.drop_edits()
        self.model(torch_case.batch(0))

    def test_an_edit_that_no_version_counts_is_refused(self):
        optimizer = self.optimizer(self.model.parameters(), model=self.model)
        if not optimizer._weights.sees_silent_writes:
            self.skipTest("the kernel shows no page map")
        self.model[3].weight.data.mul_(2)
        self.assertRaisesWith(ballast.FailedPrecondition, "edited in place",
                              optimizer.step)
        optimizer.drop_edits()
        self.train(optimizer)
        self.model[0].bias.detach().numpy()[...] = 3
        self.assertRaisesWith(ballast.FailedPrecondition, "edited in place",
                              optimizer.step)

    def test_an_edit_reaches_nobody_else(self):  # I26
        other = torch_case.net()

        def rank(number):
            model = (self.model, other)[number]
            optimizer = self.optimizer(model.parameters(), rank=number,
                                       world=2)
            if number == 1:
                model[0].weight.data.fill_(7)
            return optimizer
        lab.run_ranks(2, rank)
        self.assertEqual(float(other[0].weight[0, 0]), 7)
        self.assertNotEqual(float(self.model[0].weight[0, 0]), 7)

    def test_a_saved_model_has_its_own_bytes_only(self):
        optimizer = self.optimizer(self.model.parameters(), model=self.model)
        self.train(optimizer, 1)
        plain = torch_case.net()
        for thing, other in ((self.model.state_dict(), plain.state_dict()),
                             (self.model[0].weight, plain[0].weight)):
            ours, theirs = io.BytesIO(), io.BytesIO()
            torch.save(thing, ours)
            torch.save(other, theirs)
            self.assertEqual(len(ours.getvalue()), len(theirs.getvalue()))
        ours.seek(0)
        self.assertTrue(torch.equal(torch.load(ours), self.model[0].weight))

    def test_deepcopy_of_the_model_is_an_ordinary_model(self):
        optimizer = self.optimizer(self.model.parameters(), model=self.model)
        average = copy.deepcopy(self.model)
        with torch.no_grad():
            for parameter in average.parameters():
                parameter.mul_(0.5)
        average(torch_case.batch(0))
        self.train(optimizer)
        clone = pickle.loads(pickle.dumps(self.model))
        with torch.no_grad():
            clone[0].weight.zero_()
        clone(torch_case.batch(0))
        self.assertRaisesWith(ballast.FailedPrecondition, "deepcopy(model)",
                              lambda: copy.deepcopy(optimizer))
        self.assertRaisesWith(ballast.FailedPrecondition, "pickled",
                              lambda: pickle.dumps(optimizer))

    def test_the_model_lives_on_after_close(self):
        optimizer = self.optimizer(self.model.parameters(), model=self.model)
        self.train(optimizer)
        weight = self.model[0].weight.detach().clone()
        optimizer.close()
        with torch.no_grad():
            self.model[0].weight.add_(1)
        self.assertTrue(torch.equal(self.model[0].weight, weight + 1))
        self.model(torch_case.batch(0)).sum().backward()
        again = self.optimizer(self.model.parameters(), model=self.model)
        self.assertTrue(torch.equal(self.model[0].weight, weight + 1))
        self.train(again)

    def test_without_a_page_map(self):
        with unittest.mock.patch.object(_weights, "_read_pagemap",
                                        lambda start, pages: None):
            optimizer = self.optimizer(self.model.parameters())
        self.assertFalse(optimizer._weights.sees_silent_writes)
        self.train(optimizer, 2)

    def test_evaluation_without_gradients(self):
        optimizer = self.optimizer(self.model.parameters(), model=self.model)
        self.model.eval()
        with torch.no_grad():
            self.model(torch_case.batch(0))
        with torch.inference_mode():
            self.model(torch_case.batch(0))
        self.model.train()
        self.train(optimizer)


class MannersTest(torch_case.Base):
    """What code written for torch.optim expects."""

    def setUp(self):
        super().setUp()
        self.model = torch_case.net()

    def turn(self, optimizer, step=0):
        optimizer.zero_grad()
        self.model(torch_case.batch(step)).pow(2).mean().backward()
        optimizer.step()

    def test_is_one(self):
        optimizer = self.optimizer(self.model.parameters(), "adamw")
        self.assertIsInstance(optimizer, torch.optim.Optimizer)
        self.assertIn("lr: 0.01", repr(optimizer))

    def test_names(self):
        for params, model, names in (
                (self.model.parameters(), None, "g0.p0"),
                (self.model.named_parameters(), None, "0.weight"),
                (self.model.parameters(), self.model, "0.weight"),
                ([{"params": [self.model[3].weight]},
                  {"params": [self.model[0].weight], "lr": 1.0}], None,
                 "g1.p0")):
            optimizer = self.optimizer(params, model=model)
            self.assertIn(names, optimizer.session.params)
            optimizer.close()

    def test_groups_have_values_of_their_own(self):
        before = [p.detach().clone() for p in self.model.parameters()]
        optimizer = self.optimizer(
            [{"params": self.model[0].parameters()},
             {"params": self.model[3].parameters(), "lr": 0.0}], "sgd",
            lr=0.1)
        self.turn(optimizer)
        self.assertFalse(torch.equal(before[0], self.model[0].weight))
        self.assertTrue(torch.equal(before[4], self.model[3].weight))
        optimizer.param_groups[1]["lr"] = 0.1
        self.turn(optimizer)
        self.assertFalse(torch.equal(before[4], self.model[3].weight))

    def test_schedulers_work(self):
        def schedulers(optimizer):
            yield torch.optim.lr_scheduler.StepLR(optimizer, 2)
            yield torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: 1 / (1 + step))
            yield torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1,
                                                      total_steps=20)

        for index in range(3):
            ours = self.optimizer(self.model.parameters(), "adamw", lr=0.02)
            theirs = torch.optim.AdamW(torch_case.net().parameters(), lr=0.02)
            mine = [s for i, s in enumerate(schedulers(ours)) if i == index]
            pairs = [s for i, s in enumerate(schedulers(theirs))
                     if i == index]
            for step in range(4):
                self.turn(ours, step)
                self.assertEqual(ours.last_result.lr,
                                 ours.param_groups[0]["lr"])
                theirs.step()
                mine[0].step()
                pairs[0].step()
                for key in ("lr", "betas"):
                    self.assertEqual(ours.param_groups[0][key],
                                     theirs.param_groups[0][key])
            ours.close()

    def test_forked_data_loaders(self):
        optimizer = self.optimizer(self.model.parameters(), "sgd",
                                   model=self.model)
        data = [torch.full((6,), float(i)) for i in range(8)]
        loader = torch.utils.data.DataLoader(data, batch_size=4,
                                             num_workers=2)
        for _ in range(2):
            for rows in loader:
                self.model(rows).sum().backward()
                optimizer.step()
        self.assertEqual(optimizer.open_step, 5)

    def test_closure(self):
        optimizer = self.optimizer(self.model.parameters(), "sgd")

        def closure():
            optimizer.zero_grad()
            loss = self.model(torch_case.batch(0)).pow(2).mean()
            loss.backward()
            return loss

        self.assertGreater(float(optimizer.step(closure)), 0)
        self.assertEqual(optimizer.open_step, 2)

    def test_state_dict_has_pytorchs_shape(self):
        optimizer = self.optimizer(self.model.parameters(), "sgd",
                                   momentum=0.5)
        theirs = torch.optim.SGD(self.model.parameters(), lr=0.01,
                                 momentum=0.5)
        state = optimizer.state_dict()
        self.assertEqual(state["state"], {})
        self.assertEqual(state["param_groups"][0]["params"],
                         theirs.state_dict()["param_groups"][0]["params"])
        self.assertEqual(state["ballast"]["job"], "job")
        state["param_groups"][0]["lr"] = 0.75
        optimizer.load_state_dict(state)
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.75)
        self.turn(optimizer)

    def test_moments_are_refused(self):
        optimizer = self.optimizer(self.model.parameters(), "adam")
        other = torch_case.net()
        theirs = torch.optim.Adam(other.parameters())
        other(torch_case.batch(0)).sum().backward()
        theirs.step()
        self.assertRaisesWith(
            ballast.FailedPrecondition,
            ["moments live in the daemon", "from a snapshot (load=)"],
            lambda: optimizer.load_state_dict(theirs.state_dict()))

    def test_flags_that_the_daemon_lacks_are_refused(self):
        optimizer = self.optimizer(self.model.parameters(), "adam")
        theirs = torch.optim.Adam(self.model.parameters(), amsgrad=True)
        self.assertRaisesWith(
            ballast.InvalidArgument, ["param group 0", "amsgrad=True"],
            lambda: optimizer.load_state_dict(theirs.state_dict()))

    def test_groups_are_fixed(self):
        optimizer = self.optimizer(self.model.parameters())
        self.assertRaisesWith(
            ballast.FailedPrecondition, "cannot change while it runs",
            lambda: optimizer.add_param_group(
                {"params": [nn.Parameter(torch.zeros(2))]}))

    def test_ranks_that_disagree_are_told_the_field(self):
        models = [torch_case.net(), torch_case.net()]

        def rank(number):
            model = models[number]
            optimizer = self.optimizer(model.parameters(), "sgd", rank=number,
                                       world=2)
            optimizer.param_groups[0]["lr"] = 0.1 * (1 + number)
            with self.assertRaises(ballast.Error) as caught:
                optimizer.step()
            return str(caught.exception)
        for text in lab.run_ranks(2, rank):
            self.assertIn("lr", text)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
