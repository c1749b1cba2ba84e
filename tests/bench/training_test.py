#!/usr/bin/python3 -B
"""When tools/bench training passes, and when it must not."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

try:
    import numpy as np
    import training
except ImportError:
    np = None


def runs(losses, evaluations):
    return [{"losses": list(one), "evaluation": evaluation}
            for one, evaluation in zip(losses, evaluations)]


@unittest.skipIf(np is None, "no numpy")
class ClaimsTest(unittest.TestCase):

    def setUp(self):
        random = np.random.RandomState(3)
        self.losses = 2 + 0.1 * random.randn(3, 50)
        self.final = np.array([1.9, 2.0, 2.1])

    def claims(self, exact=0.0, delta4=0.0, plain=0.0, losses=None):
        losses = self.losses if losses is None else losses
        ways = {"plain": (losses + plain, self.final),
                "ddp": (losses, self.final),
                "exact": (losses + exact, self.final),
                "delta4": (losses, self.final + delta4)}
        return training.claims({way: runs(*given)
                                for way, given in ways.items()})

    def test_rounding_passes(self):
        self.assertEqual(self.claims(exact=1e-3).failed(), [])

    def test_more_than_rounding_does_not(self):
        self.assertRegex(self.claims(exact=4e-3).failed()[0],
                         "exact is 0.002 of the loss from DDP")

    def test_what_rounding_does_to_the_plain_process_it_may_do_to_exact(self):
        self.assertEqual(self.claims(exact=0.02, plain=-0.015).failed(), [])
        self.assertIn("exact is", self.claims(
            exact=0.035, plain=-0.015).failed()[0])

    def test_a_bound_that_another_seed_would_pass_proves_nothing(self):
        self.assertIn("nothing could fail",
                      self.claims(exact=0.02, plain=1.0).failed()[0])

    def test_says_where_two_runs_part(self):
        ones = runs(np.ones((2, 5)), (1, 1))
        others = runs(np.ones((2, 5)), (1, 1))
        self.assertEqual(training.parts_at(ones, others), 0)
        others[1]["losses"][3] += 1e-5
        self.assertEqual(training.parts_at(ones, others), 4)

    def test_delta4_may_be_worse_by_the_noise_of_seeds(self):
        self.assertEqual(self.claims(delta4=0.09).failed(), [])

    def test_and_not_by_more(self):
        self.assertIn("delta4", self.claims(delta4=0.11).failed()[0])
        self.assertEqual(self.claims(delta4=-0.11).failed(), [])

    def test_seeds_that_do_not_differ_prove_nothing(self):
        same = np.tile(self.losses[:1], (3, 1))
        self.assertIn("nothing could fail",
                      self.claims(losses=same).failed()[0])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
