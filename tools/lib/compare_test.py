#!/usr/bin/python3 -B
"""Where the comparison takes its numbers from."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import compare  # noqa: E402

_RUN = {"steps": 10, "seconds": 2.0, "last": 1.5, "nodes": 2,
        "elements": 1000000, "wire_bytes": 700000,
        "interface_bytes": 800000}


class RowTest(unittest.TestCase):

    def row(self, **changes):
        return compare.row("x", {**_RUN, **changes}, ranks=4)

    def test_the_interface_counts_first(self):
        self.assertEqual(self.row(), ("x", 0.2, 0.8, "interface", 1.5))

    def test_then_the_daemon(self):
        row = self.row(interface_bytes=None)
        self.assertAlmostEqual(row.megabytes, 0.7)
        self.assertEqual(row.source, "daemon")

    def test_then_the_formula_of_a_ring(self):
        row = self.row(interface_bytes=None, wire_bytes=None)
        # Reduce-scatter and all-gather: 2 * 3/4 of 4 MB.
        self.assertAlmostEqual(row.megabytes, 6.0)
        self.assertEqual(row.source, "formula")

    def test_one_node_sends_nothing(self):
        row = self.row(interface_bytes=None, wire_bytes=None, nodes=1)
        self.assertEqual(row.megabytes, 0)

    def test_the_first_row_is_what_others_are_less_than(self):
        lines = compare.table([
            self.row(), self.row(interface_bytes=200000)]).splitlines()
        self.assertNotIn("less", lines[1])
        self.assertIn("(4.0x less)", lines[2])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
