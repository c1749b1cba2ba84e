"""Gradients of ballast.torch.Optimizer with a real daemon: accumulated,
clipped, scaled, skipped, of tied, frozen, unused and bf16 parameters, as
PyTorch has them."""

import sys
import unittest

import lab
import torch_case

try:
    import torch
    from torch import nn
except ImportError:
    torch = None

if torch is not None and not lab.missing():
    import ballast
    import ballast.torch

class GradientsTest(torch_case.Base):

    def setUp(self):
        super().setUp()
        self.model, self.reference = torch_case.net(), torch_case.net()

    def pair(self, **options):
        """(ours, PyTorch's), both plain SGD."""
        return (self.optimizer(self.model.parameters(), torch.optim.SGD,
                               lr=0.1, **options),
                torch.optim.SGD(self.reference.parameters(), lr=0.1))

    def backward(self, model, step=0, scale=1.0):
        (model(torch_case.batch(step)).pow(2).mean() * scale).backward()

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
        models = [torch_case.net(), torch_case.net()]

        def rank(number):
            optimizer = self.optimizer(models[number].parameters(), "sgd",
                                       rank=number, world=2)
            models[number](torch_case.batch(0)).pow(2).mean().backward()
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
        inputs = torch_case.batch(0).to(torch.bfloat16)
        model(inputs).float().pow(2).mean().backward()
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
                    loss = model(torch_case.batch(step)).float().pow(2).mean()
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
        scaler.scale(self.model(torch_case.batch(0)).pow(2).mean()).backward()
        scaler.step(ours)
        scaler.update()
        self.backward(self.reference)
        theirs.step()
        self.assertSame()


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
