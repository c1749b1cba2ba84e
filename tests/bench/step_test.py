#!/usr/bin/python3 -B
"""What benchmarks on a lab say of their rows, and the model's size."""

import contextlib
import io
import os
import sys
import unittest

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _HERE)

import exchange  # noqa: E402
import gpt2  # noqa: E402
import latency  # noqa: E402
import memory  # noqa: E402
import on_lab  # noqa: E402
import step  # noqa: E402

try:
    import torch
    import gpt2_model
except ImportError:
    torch = None


def row(name, seconds, **others):
    return {"name": name, "seconds": seconds,
            "processor_seconds": 1.0, **others}


class RowsTest(unittest.TestCase):

    def rows(self, compute=0.5, delta4=2.0):
        rows = [row("compute", compute), row("ddp_fp32", 8.0),
                row("step/exact", 8.0), row("step/delta4", delta4)]
        step.add_ratios(rows, cores=2)
        return rows

    def test_the_peer_is_ddp_fp32(self):
        rows = self.rows()
        self.assertNotIn("ratio_to_peer", rows[0])
        self.assertEqual([r["ratio_to_peer"] for r in rows[1:]],
                         [1.0, 1.0, 4.0])
        self.assertEqual(rows[0]["processor_floor"], 0.5)

    def test_the_target_is_the_best_presets(self):
        self.assertEqual(step.remarks(self.rows()), [
            "target, 3x of DDP fp32: met (step/delta4, 4.00x)"])
        self.assertEqual(step.remarks(self.rows(delta4=4.0)), [
            "target, 3x of DDP fp32: missed (step/delta4, 2.00x)"])

    def test_too_much_compute_is_told(self):
        self.assertIn("compute takes 1.50 s",
                      step.remarks(self.rows(compute=1.5))[0])

    def test_an_exchange_tells_what_headers_cost(self):
        rows = [row("exchange/exact", 2.0, all_wire_bytes=1004,
                    all_payload_bytes=1000),
                row("exchange/delta2", 2.0, all_wire_bytes=507,
                    all_payload_bytes=500, wire_bytes=6, payload_bytes=5),
                row("gloo_fp32", 4.0, bytes=10)]
        exchange.add_ratios(rows, cores=2)
        self.assertEqual([r.get("wire_to_payload") for r in rows],
                         [1.004, 1.014, None])
        lines = exchange.table(rows).splitlines()
        self.assertIn(" 0.40 % ", lines[1])
        self.assertIn(" 1.40 % ", lines[2])
        self.assertNotIn("%", lines[3])

    def test_a_link_that_carried_less_than_the_payload_is_a_fault(self):
        self.assertEqual(on_lab.faults([
            {"name": "a", "tx_bytes": 10, "payload_bytes": 10},
            {"name": "tcp", "tx_bytes": 0}]), [])
        for sent in (0, 9):
            self.assertEqual(len(on_lab.faults([
                {"name": "a", "tx_bytes": sent, "payload_bytes": 10}])), 1)

    def test_a_link_that_carried_more_than_is_counted_is_a_fault(self):
        wire = 100 << 20
        rows = [{"name": "a", "tx_bytes": wire * 108 // 100,
                 "wire_bytes": wire, "payload_bytes": wire}]
        self.assertEqual(on_lab.faults(rows), [])
        rows[0]["tx_bytes"] += 1
        self.assertEqual(on_lab.faults(rows), [
            "a: the interface sent 113246209 bytes a step, "
            "the daemon counted 104857600"])
        # One node, or a tiny model: votes and measuring outweigh it.
        self.assertEqual(on_lab.faults([
            {"name": "a", "tx_bytes": 10000, "wire_bytes": size}
            for size in (0, 1000)]), [])

    def test_links_are_compared_by_what_interfaces_sent(self):
        # Both saturate the link: frames are 5 % of either.
        rows = [row("tcp", 1.0, bytes=1000, tx_bytes=1050),
                row("exchange/exact", 2.0, wire_bytes=2000, tx_bytes=2100)]
        exchange.add_ratios(rows, cores=2)
        self.assertEqual(rows[1]["link_efficiency"], 1.0)
        # Without links that count: bytes of messages, of both.
        rows = [row("tcp", 1.0, bytes=1000),
                row("exchange/exact", 2.0, wire_bytes=2000)]
        exchange.add_ratios(rows, cores=2)
        self.assertEqual(rows[1]["link_efficiency"], 1.0)

    def test_a_peer_is_what_is_divided_by_ours(self):
        rows = [{"name": "barrier", "p50_seconds": 1e-4, "p99_seconds": 1e-3},
                {"name": "latency/exact/1", "p50_seconds": 4e-4,
                 "p99_seconds": 1e-3}]
        latency.add_ratios(rows)
        self.assertNotIn("ratio_to_peer", rows[0])
        self.assertEqual(rows[1]["ratio_to_peer"], 0.25)
        self.assertIn(" 4.00x", latency.table(rows).splitlines()[2])

    def test_what_cannot_be_checked_is_told(self):
        rows = [{"name": "a", "payload_bytes": 10}, {"name": "barrier"},
                {"name": "b", "tx_bytes": 10, "payload_bytes": 10}]
        self.assertEqual(on_lab.unchecked(rows), ["a"])
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(on_lab.judge(rows), 0)
            self.assertEqual(on_lab.judge(
                [{"name": "c", "tx_bytes": 0, "payload_bytes": 1}]), 1)
        self.assertRegex(out.getvalue(), "not checked.*: a\nFAILED c: ")


class MemoryTest(unittest.TestCase):

    def rows(self, size):
        parts = dict.fromkeys(("residuals", "snapshot", "replicas"), 0)
        rows = [{"name": "memory/exact", "bytes": size, "admitted_bytes": 1390,
                 "parts": {**parts, "windows": 70, "undo": 7,
                           "control_blocks": 3, "gradients": 999}}]
        memory.add_ratios(rows, elements=100, nodes=4, workers=1)
        return rows

    def test_the_formula_is_whole(self):
        row = self.rows(1390)[0]
        # 100 elements: 4 gradient, 4 weight, a quarter of 16.
        self.assertEqual(row["formula_bytes"], 1200 + 80)
        self.assertEqual(row["ratio_to_bound"], 1.0)

    def test_either_ratio_may_miss(self):
        self.assertEqual(len(memory.misses(self.rows(1390))), 1)
        self.assertEqual(len(memory.misses(self.rows(1280))), 1)
        row = self.rows(1280)[0]
        row["ratio_to_bound"] = 0.985
        self.assertEqual(memory.misses([row]), [])


@unittest.skipIf(torch is None, "no torch")
class ModelTest(unittest.TestCase):

    def test_is_the_inventory_of_gpt2(self):
        with torch.no_grad():
            model = gpt2_model.Gpt2(gpt2.SIZES["gpt2"])
        ours = sorted(tuple(sorted(p.shape)) for p in model.parameters())
        self.assertEqual(ours, sorted(
            tuple(sorted(shape)) for shape
            in gpt2.inventory("gpt2").values()))

    def test_learns(self):
        torch.manual_seed(1)
        model = gpt2_model.Gpt2(gpt2_model.TINY)
        tokens = torch.arange(9).view(1, -1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        self.assertLess(losses[-1], 0.8 * losses[0])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
