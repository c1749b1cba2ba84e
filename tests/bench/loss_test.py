#!/usr/bin/python3 -B
"""The loss study's own arithmetic: what passes, what is kept, and the hop
that it emulates."""

import argparse
import os
import sys
import tempfile
import unittest
from unittest import mock

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))
sys.path[:0] = [_HERE, os.path.join(_ROOT, "tests", "golden"),
                os.path.join(_ROOT, "client", "python")]

try:
    import numpy as np
    import curves
    import loss
    import on_lab
except ImportError:
    np = None
try:
    import torch
except ImportError:
    torch = None


def runs(*evaluations):
    return [{"evaluation": value, "payload_bytes": 2e6, "losses": [value]}
            for value in evaluations]


@unittest.skipIf(np is None, "no numpy")
class SummaryTest(unittest.TestCase):

    GROUND = (2.0, 2.1, 1.9)

    def row(self, name, *evaluations):
        return loss.summaries({"exact": runs(*self.GROUND),
                               name: runs(*evaluations)})[1]

    def test_half_a_percent_is_within(self):
        row = self.row("delta4", 2.009, 2.109, 1.909)
        self.assertTrue(row.is_within)
        self.assertTrue(row.passed)
        self.assertAlmostEqual(row.difference, 0.009)
        self.assertAlmostEqual(row.megabytes, 2.0)

    def test_more_is_not(self):
        row = self.row("delta4", 2.02, 2.12, 1.92)
        self.assertFalse(row.is_within)
        self.assertFalse(row.passed)

    def test_more_is_within_the_noise_of_seeds(self):
        # Mean 0.02, standard error 0.0577: two of them are the bound.
        self.assertTrue(self.row("delta4", 2.12, 2.12, 1.82).is_within)

    def test_the_control_must_be_worse(self):
        self.assertTrue(self.row("int4-weights", 2.2, 2.3, 2.1).passed)
        self.assertFalse(self.row("int4-weights", *self.GROUND).passed)

    def test_of_a_policy_nothing_is_expected(self):
        self.assertTrue(self.row("zeropp seed=3", 3.0, 3.1, 2.9).passed)

    def test_differences_are_paired(self):
        # Seeds differ by 0.1, the pairs by nothing.
        self.assertEqual(self.row("zeropp", *self.GROUND).error, 0.0)


@unittest.skipIf(np is None, "no numpy")
class KeepTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = os.path.join(scratch.name, "runs")

    def take(self, steps=3):
        options = argparse.Namespace(keep=self.folder, steps=steps, nodes=2,
                                     workers=2)
        return loss.kept("delta4-plain", 1, options)

    def test_a_run_is_made_once(self):
        with mock.patch.object(loss, "train",
                               return_value={"first": 1.0}) as train:
            self.assertEqual(self.take(), self.take())
        self.assertEqual(train.call_count, 1)

    def test_a_run_of_another_kind_is_refused(self):
        with mock.patch.object(loss, "train", return_value={"first": 1.0}):
            self.take()
            with self.assertRaisesRegex(on_lab.LabFailed, "'steps': 3"):
                self.take(steps=4)

    def test_a_failed_run_is_not_kept(self):
        with mock.patch.object(loss, "train",
                               side_effect=on_lab.LabFailed("x")):
            with self.assertRaises(on_lab.LabFailed):
                self.take()
        self.assertFalse(os.path.exists(self.folder))


@unittest.skipIf(np is None, "no numpy")
class CurveTest(unittest.TestCase):

    def test_a_curve_is_the_mean_over_runs_smoothed(self):
        steps, losses = curves.points(curves.Curve(
            "x", [np.arange(80.0), np.arange(80.0) + 2]))
        self.assertEqual(steps[0], 2)
        self.assertEqual(steps[-1], 80)
        np.testing.assert_allclose(losses[:2], [1.5, 2.5])

    def test_without_matplotlib_there_is_no_plot_and_a_line_says_so(self):
        with mock.patch.dict(sys.modules, matplotlib=None), \
                mock.patch("sys.stderr") as told:
            self.assertFalse(curves.draw([], "x.png"))
        self.assertIn("python3-matplotlib",
                      "".join(c.args[0] for c in told.write.call_args_list))

    def test_a_plot_is_a_png(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("no python3-matplotlib")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.png")
            curve = curves.Curve("x", [[3.0, 2.0, 1.0]], 0.5)
            self.assertTrue(curves.draw(
                [curves.Panel("a", [curve]),
                 curves.Panel("b", [curve], is_by_bytes=True)], path))
            with open(path, "rb") as stream:
                self.assertEqual(stream.read(4), b"\x89PNG")


@unittest.skipIf(np is None or torch is None, "no torch")
class HopTest(unittest.TestCase):
    """Bit for bit what the specification's int4 leaves."""

    @classmethod
    def setUpClass(cls):
        import loss_worker
        import reference
        cls.through = staticmethod(loss_worker.through_int4)
        cls.add_hop = staticmethod(loss_worker.add_hop)
        cls.reference = reference

    def expected(self, array):
        spec = self.reference.pack_spec(4, 128)
        return np.concatenate([
            self.reference.decode(spec, len(cell),
                                  self.reference.encode(spec, cell))
            for cell in np.split(array, range(2048, len(array), 2048))])

    def check(self, array):
        ours = self.through(torch.from_numpy(array)).numpy()
        theirs = self.expected(array)
        np.testing.assert_array_equal(ours, theirs)

    def test_equals_the_reference(self):
        random = np.random.RandomState(5)
        for count in (1, 127, 128, 129, 2048, 5000):
            with self.subTest(count):
                array = (random.randn(count) *
                         10.0**random.uniform(-9, 2)).astype(np.float32)
                array[::7] = 0
                self.check(array)

    def test_zero_and_tiny_blocks_are_zero(self):
        array = np.full(256, 2.0**-121, np.float32)
        array[:128] = 0
        self.check(array)

    def test_what_is_not_finite_takes_its_block(self):
        array = np.ones(256, np.float32)
        array[3] = np.inf
        self.check(array)
        array[200] = np.nan
        self.check(array)

    def test_the_control_that_is_not_encoded_differs(self):
        array = np.random.RandomState(6).randn(128).astype(np.float32)
        self.assertFalse(np.array_equal(array, self.expected(array)))

    def test_only_large_tensors_are_encoded(self):
        for size, is_encoded in ((16 << 10, False), ((16 << 10) + 1, True)):
            with self.subTest(size):
                model = torch.nn.Module()
                model.weight = torch.nn.Parameter(torch.ones(size))
                self.add_hop(model)
                factor = torch.arange(size, dtype=torch.float32)
                (model.weight * factor).sum().backward()
                self.assertEqual(
                    not torch.equal(model.weight.grad, factor), is_encoded)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
