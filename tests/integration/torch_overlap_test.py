"""Gradients pushed during backward, weights waited for at first use, and the
DeepSpeed engine on top: the bits of the plain way."""

import copy
import json
import math
import os
import sys
import tempfile
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
    import ballast
    import ballast.torch

_STEPS = 4


class _Model(nn.Module if torch is not None else object):
    """Weights used by modules, by lookup in a parent, and by an LSTM that
    keeps its own list of them; one that is not used at all."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(7, 6)
        self.recurrent = nn.LSTM(6, 5, batch_first=True)
        self.norm = nn.LayerNorm(5)
        self.head = nn.Linear(5, 7)
        self.unused = nn.Linear(2, 2)

    def forward(self, tokens):
        out, _ = self.recurrent(self.table(tokens))
        out = nn.functional.layer_norm(out, (5,), self.norm.weight,
                                       self.norm.bias)
        return self.head(out)


def batch(step, rank=0):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(7, (4, 5), generator=generator)


def loss_of(model, step, rank=0):
    tokens = batch(step, rank)
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1),
                                       tokens.flatten())


@unittest.skipIf(torch is None, "no torch")
class Base(lab.TestCase):

    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon()

    def options(self, **options):
        return dict(dict(job="job", address=self.daemon.address,
                         timeout=lab.PATIENCE, bucket_bytes=8192), **options)

    def optimizer(self, model, **options):
        result = ballast.torch.Optimizer(
            model.parameters(), "adamw", model=model, lr=0.01,
            **self.options(**options))
        self.addCleanup(self.end, result)
        return result

    @staticmethod
    def end(optimizer):
        try:
            optimizer.close()
        except ballast.Error:
            pass

    def plain(self, passes=1, world=1):
        models = [_Model() for _ in range(world)]

        def rank(number):
            model = models[number]
            optimizer = self.optimizer(model, job="plain-%d" % world,
                                       rank=number, world_size=world)
            for step in range(_STEPS):
                for part in range(passes):
                    loss_of(model, passes * step + part, number).backward()
                optimizer.step()
                optimizer.zero_grad()
            optimizer.close()
        lab.run_ranks(world, rank)
        return models[0].state_dict()

    def assertSame(self, model, expected):
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, expected[name]), name)


class OverlapTest(Base):

    def run_it(self, passes=1, world=1, set_to_none=False):
        models = [_Model() for _ in range(world)]

        def rank(number):
            model = models[number]
            optimizer = self.optimizer(
                model, overlap=True, backward_passes_per_step=passes,
                rank=number, world_size=world)
            for step in range(_STEPS):
                for part in range(passes):
                    loss_of(model, passes * step + part, number).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none)
            self.assertEqual(optimizer.grad_copies > 0, set_to_none)
            optimizer.close()
        lab.run_ranks(world, rank)
        return models[0]

    def test_same_bits_as_without(self):  # I9
        expected = self.plain()
        self.assertSame(self.run_it(), expected)
        self.assertSame(self.run_it(set_to_none=True), expected)

    def test_same_bits_with_the_hooks_of_torch_2(self):
        def register(parameter, hook):
            node = parameter.expand_as(parameter).grad_fn
            node = node.next_functions[0][0]
            nodes.append(node)
            return node.register_hook(lambda *_: hook(parameter))

        nodes = []
        with unittest.mock.patch.object(
                nn.Parameter, "register_post_accumulate_grad_hook", register,
                create=True):
            self.assertSame(self.run_it(), self.plain())
        self.assertTrue(nodes)

    def test_same_bits_with_two_ranks(self):  # I25
        self.assertSame(self.run_it(world=2), self.plain(world=2))

    def test_accumulation(self):
        self.assertSame(self.run_it(passes=3), self.plain(passes=3))

    def test_pushes_during_backward(self):
        model = _Model()
        optimizer = self.optimizer(model, overlap=True)
        pushed = []
        original = optimizer.session.push
        optimizer.session.push = lambda name: (pushed.append(name),
                                               original(name))
        loss_of(model, 0).backward()
        self.assertEqual(set(pushed), {
            n for n, _ in model.named_parameters() if "unused" not in n})
        # Backward order: the head's first.
        self.assertLess(pushed.index("head.weight"),
                        pushed.index("table.weight"))
        optimizer.step()
        self.assertTrue(torch.equal(model.unused.weight.grad,
                                    torch.zeros(2, 2)))

    def test_waits_where_a_weight_is_first_used(self):  # I2
        model = _Model()
        names = {n for n, _ in model.named_parameters() if "unused" not in n}
        optimizer = self.optimizer(model, overlap=True)
        loss_of(model, 0).backward()
        optimizer.step()
        waited = []
        original = optimizer.session.wait
        optimizer.session.wait = lambda name=None: (waited.append(name),
                                                    original(name))
        model.norm.weight  # looked up
        self.assertEqual(waited, ["norm.weight"])
        model(batch(1))
        self.assertEqual(set(waited), names)
        self.assertEqual(len(waited), len(names))  # once each
        model.state_dict()
        self.assertEqual(set(waited) - names, {"unused.weight",
                                               "unused.bias"})

    def test_clips_and_returns_the_norm(self):
        model = _Model()
        optimizer = self.optimizer(model, overlap=True,
                                   gradient_clipping=0.01)
        for step in range(3):
            loss_of(model, step).backward()
            self.assertGreater(float(optimizer.clip_grad_norm_(0.01)), 0.01)
            optimizer.step()
            optimizer.zero_grad()
        self.assertLess(optimizer.last_result.clip_factor, 1)

    def test_a_copy_is_an_ordinary_model(self):
        model = _Model()
        optimizer = self.optimizer(model, overlap=True)
        loss_of(model, 0).backward()
        optimizer.step()
        clone = copy.deepcopy(model)
        self.assertNotIn("_Awaited", type(clone.norm._parameters).__name__)
        loss_of(clone, 0).backward()
        self.assertFalse(optimizer._gradients.is_pushed(
            optimizer._entries[0]))
        optimizer.close()
        self.assertNotIn("_Awaited", type(model.norm._parameters).__name__)
        loss_of(model, 0).backward()
        loss_of(model, 0).backward()  # nobody is there to refuse it

    def test_is_visible_in_the_trace(self):
        model = _Model()
        optimizer = self.optimizer(model, overlap=True)
        for step in range(3):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, "trace.json")
            optimizer.session.trace(path)
            with open(path) as stream:
                events = json.load(stream)["traceEvents"]
        spans = [e for e in events if e["ph"] == "X"]
        self.assertEqual({e["name"] for e in spans}, {
            "compute", "push", "wait", "collect", "reduce", "vote", "update",
            "publish"})
        for compute in (e for e in spans if e["name"] == "compute"):
            end = compute["ts"] + compute["dur"]
            inside = [e for e in spans if e["name"] == "push"
                      and compute["ts"] <= e["ts"] <= end]
            self.assertGreater(len(inside), 5)


class EngineTest(Base):

    CONFIG = {
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {
            "lr": 0.01, "weight_decay": 0.01}},
        "scheduler": {"type": "WarmupLR", "params": {
            "warmup_max_lr": 0.01, "warmup_num_steps": 4,
            "warmup_type": "linear"}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2, "overlap_comm": True},
    }

    def train(self, model, config):
        engine, optimizer, loader, scheduler = ballast.torch.initialize(
            model, config, **self.options())
        self.assertIsNone(loader)
        self.addCleanup(self.end, optimizer)
        rates = []
        for micro in range(2 * _STEPS):
            loss = loss_of(engine, micro)
            engine.backward(loss)
            engine.step()
            if not engine.micro_steps % 2:
                rates.append(optimizer.last_result.lr)
        self.assertEqual(engine.global_steps, _STEPS)
        self.assertIs(engine.lr_scheduler, scheduler)
        optimizer.close()
        return engine, rates

    def test_a_deepspeed_loop(self):
        model = _Model()
        engine, rates = self.train(model, self.CONFIG)
        # DeepSpeed's numbers: the lowest rate at first, then from 0 up.
        self.assertEqual(rates, [0.0, 0.0, 0.0025, 0.005])
        self.assertEqual(engine.train_batch_size(), 8)
        self.assertEqual(engine.gradient_accumulation_steps(), 2)
        reference = _Model()
        optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01,
                                      weight_decay=0.01, foreach=False)
        for step, rate in enumerate(rates):
            for part in range(2):
                (loss_of(reference, 2 * step + part) / 2).backward()
            nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()
        for name, value in reference.state_dict().items():
            ours = model.state_dict()[name]
            self.assertLess(float((ours - value).abs().max()), 1e-4, name)

    def test_bf16_and_a_file(self):
        config = {**self.CONFIG, "bf16": {"enabled": True}}
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, "ds.json")
            with open(path, "w") as stream:
                json.dump(config, stream)
            torch.manual_seed(1)
            model = nn.Linear(3, 2)
            engine, optimizer, _, _ = ballast.torch.initialize(
                model, path, **self.options())
        self.addCleanup(self.end, optimizer)
        self.assertEqual(model.weight.dtype, torch.bfloat16)
        for _ in range(2):
            engine.backward(engine(torch.ones(1, 3, dtype=torch.bfloat16)
                                   ).float().sum())
            engine.step()
        self.assertEqual(engine.global_steps, 1)
        for call in (engine.save_checkpoint, engine.load_checkpoint):
            self.assertRaisesWith(ballast.FailedPrecondition,
                                  "snapshot", call)

    def test_what_is_refused(self):
        config = {**self.CONFIG, "zero_optimization": {
            "stage": 3, "stage3_max_live_parameters": 1e9}}
        self.assertRaisesWith(
            ballast.InvalidArgument,
            ["stage3_max_live_parameters", "nearest: remove it"],
            lambda: ballast.torch.initialize(_Model(), config,
                                             **self.options()))

    def test_schedules_are_deepspeeds(self):
        def rates(kind, steps, **params):
            from ballast import deepspeed
            from ballast.torch.schedules import Warmup
            complete = deepspeed.read({
                "optimizer": {"type": "SGD"},
                "scheduler": {"type": kind, "params": params}}
                ).check().scheduler["params"]
            optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=2.0)
            schedule = Warmup(optimizer, kind, complete)
            found = []
            for _ in range(steps):
                found.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                schedule.step()
            return found

        def assertRates(found, expected):
            for one, other in zip(found, expected):
                self.assertAlmostEqual(one, other, places=9)

        assertRates(rates("WarmupLR", 6, warmup_max_lr=1.0,
                          warmup_min_lr=0.1, warmup_num_steps=4,
                          warmup_type="linear"),
                    [0.1, 0.1, 0.325, 0.55, 0.775, 1.0])
        assertRates(rates("WarmupLR", 4, warmup_num_steps=4),
                    [0.0, 0.0, 1.0, 2 * math.log(3) / math.log(4)])
        assertRates(rates("WarmupDecayLR", 8, warmup_max_lr=1.0,
                          warmup_num_steps=2, total_num_steps=6,
                          warmup_type="linear"),
                    [0.0, 0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0])
        assertRates(rates("WarmupCosineLR", 8, warmup_num_steps=2,
                          total_num_steps=6, cos_min_ratio=0.0,
                          warmup_type="linear"),
                    [0.0, 0.0, 1.0, 1 + 2**-0.5, 1.0, 1 - 2**-0.5,
                     0.0, 0.0])


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    sys.exit(unittest.main(verbosity=2))
