"""ballast.torch.Optimizer with a real daemon: PyTorch's numbers, PyTorch's
manners."""

import contextlib
import copy
import io
import pickle
import sys
import unittest
import unittest.mock
import warnings

import lab

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


def arrays(params):
    return {k: p.detach().numpy().copy() for k, p in params.items()}


def net(seed=1):
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


class ParityTest(Base):
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
        return arrays(params)

    def theirs(self, name, hyper):
        initial, gradients = recorded()
        params = parameters(initial)
        feed(params, getattr(torch.optim, name)(params.values(), **hyper),
             gradients, hyper["lr"])
        return arrays(params)

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
        self.assertLess(distance(arrays(params), expected), _TOLERANCE)


class WeightsTest(Base):

    def setUp(self):
        super().setUp()
        self.model = net()

    def train(self, optimizer, steps=1):
        for step in range(steps):
            self.model(batch(step)).pow(2).mean().backward()
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
        old = self.model(batch(0)).pow(2).mean()
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
        self.model.load_state_dict(net(2).state_dict())
        self.assertRaisesWith(ballast.FailedPrecondition,
                              ["'0.weight'", "load_state_dict",
                               "load_weights()"],
                              lambda: self.model(batch(0)))
        optimizer.drop_edits()
        self.model(batch(0))

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
        other = net()

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
        plain = net()
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
        average(batch(0))
        self.train(optimizer)
        clone = pickle.loads(pickle.dumps(self.model))
        with torch.no_grad():
            clone[0].weight.zero_()
        clone(batch(0))
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
        self.model(batch(0)).sum().backward()
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
            self.model(batch(0))
        with torch.inference_mode():
            self.model(batch(0))
        self.model.train()
        self.train(optimizer)


class GradientsTest(Base):

    def setUp(self):
        super().setUp()
        self.model, self.reference = net(), net()

    def pair(self, **options):
        """(ours, PyTorch's), both plain SGD."""
        return (self.optimizer(self.model.parameters(), torch.optim.SGD,
                               lr=0.1, **options),
                torch.optim.SGD(self.reference.parameters(), lr=0.1))

    def backward(self, model, step=0, scale=1.0):
        (model(batch(step)).pow(2).mean() * scale).backward()

    def assertSame(self, tolerance=1e-6):
        for ours, theirs in zip(self.model.parameters(),
                                self.reference.parameters()):
            self.assertLess(float((ours - theirs).abs().max()), tolerance)

    def test_set_to_none_copies_and_counts(self):
        ours, theirs = self.pair()
        count = len(list(self.model.parameters()))
        for step in range(3):
            for model, optimizer in ((self.model, ours),
                                     (self.reference, theirs)):
                self.backward(model, step)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        self.assertSame()
        self.assertEqual(ours.grad_copies, 2 * count)
        ours.zero_grad()
        self.backward(self.model)
        ours.step()
        self.assertEqual(ours.grad_copies, 2 * count)

    def test_accumulates(self):
        for model, optimizer in zip((self.model, self.reference),
                                    self.pair()):
            for step in range(3):
                self.backward(model, step)
            optimizer.step()
        self.assertSame()

    def test_gradients_from_before_count(self):
        self.backward(self.model)
        self.backward(self.reference)
        ours, theirs = self.pair()
        ours.step()
        theirs.step()
        self.assertSame()

    def test_pytorchs_clipping_before_the_push(self):
        for model, optimizer in zip((self.model, self.reference),
                                    self.pair()):
            self.backward(model, scale=100.0)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
        self.assertSame()

    def test_clips_by_the_global_norm(self):
        ours, theirs = self.pair(gradient_clipping=0.1)
        self.backward(self.model, scale=100.0)
        self.backward(self.reference, scale=100.0)
        norm = nn.utils.clip_grad_norm_(self.reference.parameters(), 0.1)
        self.assertAlmostEqual(float(ours.clip_grad_norm_(0.1)), float(norm),
                               delta=1e-5 * float(norm))
        ours.step()
        theirs.step()
        self.assertSame()
        self.assertEqual(ours.open_step, 2)

    def test_each_step_may_clip_otherwise(self):
        for clipping in (None, 0.02):
            ours, theirs = self.pair(gradient_clipping=clipping)
            for step, norm in enumerate((0.1, None, 0.05)):
                of_step = clipping if norm is None else norm
                self.backward(self.model, step)
                self.backward(self.reference, step)
                if of_step is not None:
                    nn.utils.clip_grad_norm_(self.reference.parameters(),
                                             of_step)
                if norm is not None:
                    ours.clip_grad_norm_(norm)
                for optimizer in (ours, theirs):
                    optimizer.step()
                    optimizer.zero_grad()
                self.assertEqual(ours.last_result.clip_factor < 1,
                                 of_step is not None)
                self.assertSame()
            ours.close()

    def test_what_is_no_norm_is_refused(self):
        ours, _ = self.pair(gradient_clipping=0.1)
        for norm in (0, -1.0, float("nan"), "1"):
            self.assertRaisesWith(
                ballast.InvalidArgument, "max_norm must be a finite number",
                lambda: ours.clip_grad_norm_(norm))
        self.assertRaisesWith(ballast.FailedPrecondition,
                              ["clip_grad_norm_(inf)",
                               "gradient_clipping=0.1"],
                              lambda: ours.clip_grad_norm_(float("inf")))

    def test_the_norm_without_clipping(self):
        ours, _ = self.pair()
        self.backward(self.model)
        self.assertGreater(float(ours.clip_grad_norm_(float("inf"))), 0)
        ours.step()
        self.assertEqual(ours.last_result.clip_factor, 1)

    def test_ranks_that_clip_otherwise_are_told(self):
        models = [net(), net()]

        def rank(number):
            optimizer = self.optimizer(models[number].parameters(), "sgd",
                                       rank=number, world=2)
            models[number](batch(0)).pow(2).mean().backward()
            with self.assertRaises(ballast.Error) as caught:
                optimizer.clip_grad_norm_(0.1 * (1 + number))
            return str(caught.exception)
        for text in lab.run_ranks(2, rank):
            self.assertIn("max_norm is 0.1 on rank 0 but 0.2 on rank 1", text)

    def test_clipping_after_the_push_is_refused(self):
        ours, _ = self.pair(gradient_clipping=0.1)
        self.backward(self.model)
        ours.clip_grad_norm_(0.1)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.assertRaisesWith(
            ballast.FailedPrecondition,
            ["'g0.p0' was changed after it was pushed", "gradient_clipping=",
             "optimizer.clip_grad_norm_()"], ours.step)

    def test_clipping_for_the_next_step_is_not(self):
        ours, _ = self.pair(gradient_clipping=0.1)
        self.backward(self.model)
        ours.clip_grad_norm_(0.1)
        ours.step()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        ours.step()

    def test_unused_parameters_contribute_zero(self):
        spare = nn.Parameter(torch.ones(3))
        ours = self.optimizer([*self.model.parameters(), spare],
                              torch.optim.SGD, lr=0.1)
        ours.zero_grad(set_to_none=True)
        self.backward(self.model)
        ours.step()
        self.assertTrue(torch.equal(spare, torch.ones(3)))
        self.assertTrue(torch.equal(spare.grad, torch.zeros(3)))

    def test_tied_weights_stay_tied(self):  # I16
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(3)
                self.table = nn.Embedding(5, 4)
                self.head = nn.Linear(4, 5, bias=False)
                self.head.weight = self.table.weight

            def forward(self, tokens):
                return self.head(self.table(tokens))

        tokens = torch.tensor([0, 3, 1])
        ours, theirs = Tied(), Tied()
        a = self.optimizer(ours.parameters(), torch.optim.SGD, lr=0.1,
                           model=ours)
        b = torch.optim.SGD(theirs.parameters(), lr=0.1)
        for model, optimizer in ((ours, a), (theirs, b)):
            model(tokens).pow(2).sum().backward()
            optimizer.step()
        self.assertIs(ours.head.weight, ours.table.weight)
        self.assertLess(float((ours.head.weight -
                               theirs.head.weight).abs().max()), 1e-6)
        self.assertEqual(list(a.session.params), ["table.weight"])

    def test_frozen_parameters_are_published_and_have_no_gradient(self):
        for parameter in self.model[0].parameters():
            parameter.requires_grad_(False)
        ours = self.optimizer(
            [p for p in self.model.parameters() if p.requires_grad],
            torch.optim.SGD, lr=0.1, model=self.model)
        self.assertIn("0.weight", ours.session.params)
        self.assertNotIn("0.weight", ours.session.grads)
        before = self.model[0].weight.detach().clone()
        self.backward(self.model)
        ours.step()
        self.assertTrue(torch.equal(before, self.model[0].weight))

    def test_bf16_parameters(self):  # I5
        model = nn.Linear(6, 3).to(torch.bfloat16)
        ours = self.optimizer(model.parameters(), torch.optim.SGD, lr=0.5)
        before = model.weight.detach().clone()
        model(batch(0).to(torch.bfloat16)).float().pow(2).mean().backward()
        gradient = model.weight.grad.clone()
        self.assertEqual(model.weight.grad.dtype, torch.bfloat16)
        ours.step()
        expected = (before.float() - 0.5 * gradient.float()).to(
            torch.bfloat16)
        self.assertTrue(torch.equal(model.weight, expected))

    def test_bf16_autocast(self):
        for model, optimizer in zip((self.model, self.reference),
                                    self.pair()):
            for step in range(3):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(batch(step)).float().pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        self.assertSame(1e-5)

    def test_loss_scale(self):
        ours, theirs = self.pair(gradient_clipping=None)
        ours.loss_scale = 1024.0
        self.backward(self.model, scale=1024.0)
        self.backward(self.reference)
        ours.step()
        theirs.step()
        self.assertSame()

    def test_infinite_gradients_skip_the_step(self):  # I10
        ours, _ = self.pair()
        before = self.model[0].weight.detach().clone()
        self.model[0].weight.grad[0, 0] = float("inf")
        ours.step()
        self.assertTrue(ours.last_result.skipped)
        self.assertTrue(torch.equal(before, self.model[0].weight))

    def test_as_gradscaler_calls_it(self):
        """GradScaler (CPU: torch 2.3) sets these two for the call."""
        ours, theirs = self.pair()
        self.backward(self.model, scale=8.0)
        self.backward(self.reference)
        self.assertTrue(ours._step_supports_amp_scaling)
        ours.grad_scale = torch.tensor(8.0)
        ours.found_inf = torch.tensor(0.0)
        ours.step()
        del ours.grad_scale, ours.found_inf
        theirs.step()
        self.assertSame()

    def test_gradscaler_itself(self):
        scaler_class = getattr(getattr(torch, "amp", None), "GradScaler",
                               None)
        if scaler_class is None:
            self.skipTest("torch.amp.GradScaler comes with torch 2.3")
        scaler = scaler_class("cpu", init_scale=8.0)
        ours, theirs = self.pair()
        scaler.scale(self.model(batch(0)).pow(2).mean()).backward()
        scaler.step(ours)
        scaler.update()
        self.backward(self.reference)
        theirs.step()
        self.assertSame()


class MannersTest(Base):
    """What code written for torch.optim expects."""

    def setUp(self):
        super().setUp()
        self.model = net()

    def turn(self, optimizer, step=0):
        optimizer.zero_grad()
        self.model(batch(step)).pow(2).mean().backward()
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
            theirs = torch.optim.AdamW(net().parameters(), lr=0.02)
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
            loss = self.model(batch(0)).pow(2).mean()
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
        other = net()
        theirs = torch.optim.Adam(other.parameters())
        other(batch(0)).sum().backward()
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
        models = [net(), net()]

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        sys.exit(unittest.main(verbosity=2))
