#!/usr/bin/python3
"""The ctypes module does what its callers rely on."""

import os
import sys
import unittest

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import reference  # noqa: E402


class ReferenceTest(unittest.TestCase):

    def test_mean_of_ones_is_one_for_every_dtype_and_shape(self):  # I6
        ones = {"float32": np.ones((2, 3), np.float32),
                "float16": np.ones((2, 3), np.float16),
                "bfloat16": np.full((2, 3), 0x3F80, np.uint16)}
        for dtype, array in ones.items():
            for world in (1, 3, 6, 64):
                mean = reference.mean([array] * world, dtype)
                self.assertEqual(mean.shape, (2, 3))
                self.assertTrue((mean == 1).all())

    def test_scalars_and_empty_tensors(self):  # I4
        self.assertEqual(reference.mean([np.float32(2), np.float32(4)]), 3)
        self.assertEqual(
            reference.mean([np.zeros((0, 4), np.float32)] * 2).shape, (0, 4))

    def test_mean_follows_the_tree(self):
        values = [np.float32(v).reshape(1) for v in (2**24, 1, 1, 1)]
        self.assertEqual(reference.mean(values)[0], 4194304.5)

    def test_wrong_dtype_is_refused(self):  # I5
        with self.assertRaises(ValueError):
            reference.mean([np.ones(3, np.float32)], "bfloat16")
        with self.assertRaises(ValueError):
            reference.mean([np.ones(3, np.float32), np.ones(4, np.float32)])

    def test_norm(self):  # I10
        self.assertEqual(
            reference.norm2([np.full(5000, 2, np.float32),
                             np.ones((2, 2), np.float32)]), (20004.0, True))
        square, finite = reference.norm2([np.array([1, np.nan], np.float32)])
        self.assertFalse(finite)
        self.assertEqual(square, 0)

    def test_clip_factor(self):
        self.assertEqual(reference.clip_factor(1e6, None), 1.0)
        self.assertEqual(reference.clip_factor(4.0, 1.0),
                         np.float32(1 / (2 + 1e-6)))

    def test_bf16_weights_are_casts_of_the_masters(self):
        w = np.array([0x3F80, 0xBF80, 0x4000], np.uint16)
        opt = reference.Optimizer(
            "sgd", [{"params": {"w": (w, "bfloat16")}, "lr": 0.001}])
        g = (np.full(3, 0x3F80, np.uint16), "bfloat16")
        for _ in range(3):
            opt.step({"w": [g, g]})
        self.assertTrue((opt.weight("w") ==
                         reference.cast(opt.master["w"], "bfloat16")).all())
        self.assertNotEqual(opt.master["w"][0], 1.0)

    def test_non_finite_step_is_skipped_and_not_counted(self):  # I10
        def run(bad):
            opt = reference.Optimizer(
                "adam", [{"params": {"w": np.ones(3, np.float32)},
                          "lr": 0.1}])
            for step in range(4):
                if bad and step == 2:
                    poison = np.array([1, np.inf, 1], np.float32)
                    self.assertTrue(opt.step({"w": [poison]})["skipped"])
                opt.step({"w": [np.arange(3, dtype=np.float32) + step]})
            return opt
        self.assertTrue((run(True).master["w"] == run(False).master["w"]).all())
        self.assertEqual(run(True).applied_steps, 4)

    def test_codec_round_trip(self):
        x = np.linspace(-1, 1, 3000).astype(np.float32)
        spec = reference.pack_spec(8, 256)
        encoded = reference.encode(spec, x)
        y = reference.decode(spec, x.size, encoded)
        self.assertLess(np.abs(x - y).max(), 0.5 / 127 + 1e-5)
        with self.assertRaises(ValueError):
            reference.encode(reference.pack_spec(3, 256), x)
        with self.assertRaises(ValueError):
            reference.decode(spec, x.size + 1000, encoded)

    def test_exact_sum(self):
        self.assertEqual(reference.exact_sum([1.0, 2.0**-53, 2.0**-1074]),
                         1 + 2.0**-52)


if __name__ == "__main__":
    unittest.main()
