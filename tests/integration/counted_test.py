"""What two nodes count: skipped steps after a non-finite gradient, and the
numbers of the metrics page between nodes."""

import re
import sys
import threading
import time
import unittest

import lab
import nodes

if not lab.missing():
    import numpy as np


def series(page, name, **labels):
    """The value of the one series with these labels (others may be there)."""
    found = []
    for line in page.splitlines():
        match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        if match is None or match[1] != name:
            continue
        have = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
        if all(have.get(key) == value for key, value in labels.items()):
            found.append(float(match[3]))
    if len(found) != 1:
        raise AssertionError("%d series %s %s in:\n%s"
                             % (len(found), name, labels, page))
    return found[0]


class NonFiniteTest(nodes.NodesCase):

    # (rank, value) by step; 20,000 elements: more than zeropp leaves alone.
    BAD = {2: (2, "nan"), 3: (0, "inf"), 5: (3, "-inf")}
    STEPS = 6

    def check(self, exchange):  # I10, I25
        daemons = self.start_nodes(2)
        done = threading.Barrier(4)

        def worker(rank):
            with self.session(daemons, rank, 2,
                              {"w": np.ones(20000, np.float32)},
                              exchange=exchange) as s:
                skipped = []
                for step in s.steps(self.STEPS):
                    s.grads["w"][...] = 1
                    who, value = self.BAD.get(step, (None, None))
                    if who == rank:
                        s.grads["w"][4321] = float(value)
                    before = np.array(s.params["w"])
                    result = s.step()
                    if result.skipped:
                        skipped.append(step)
                        self.assertBitsEqual(s.params["w"], before)
                        self.assertTrue(np.isnan(result.grad_norm))
                    self.assertTrue(np.all(np.isfinite(s.params["w"])))
                done.wait(lab.PATIENCE)
                if rank == 0:
                    self.check_counts(daemons)
                done.wait(lab.PATIENCE)
                return skipped, s.params["w"].tobytes()

        results = lab.run_ranks(4, worker)
        self.assertEqual([r[0] for r in results], [sorted(self.BAD)] * 4)
        self.assertEqual(len({r[1] for r in results}), 1)
        mean = np.frombuffer(results[0][1], np.float32).mean()
        self.assertAlmostEqual(mean, 1 - (self.STEPS - len(self.BAD)), places=2)

    def check_counts(self, daemons):
        for daemon in daemons:
            job = daemon.control("job", "job")
            self.assertEqual(job["steps_skipped"], len(self.BAD))
            page = daemon.metrics()
            self.assertEqual(series(page, "ballast_steps_total",
                                    outcome="skipped"), len(self.BAD))
            self.assertEqual(series(page, "ballast_steps_total",
                                    outcome="committed"),
                             self.STEPS - len(self.BAD))
            self.assertEqual(series(page, "ballast_nonfinite_values_total",
                                    place="gradient"), len(self.BAD))

    def test_exact(self):
        self.check("exact")

    def test_zeropp(self):
        self.check("zeropp")

    def test_delta4(self):  # differences, and rotated blocks
        self.check("delta4")


class MetricsTest(nodes.NodesCase):

    STEPS = 4
    ELEMENTS = 100000
    DELAY = 0.3  # of one worker of node 1, in each step

    def test_two_nodes(self):  # I21
        daemons = self.start_nodes(2)
        done = threading.Barrier(4)
        results = [[] for _ in range(4)]

        def worker(rank):
            with self.session(daemons, rank, 2,
                              {"w": np.zeros(self.ELEMENTS, np.float32)}) as s:
                for _ in s.steps(self.STEPS):
                    if rank == 3:
                        time.sleep(self.DELAY)
                    results[rank].append(s.step())
                done.wait(lab.PATIENCE)
                if rank == 0:
                    self.check(daemons, results)
                done.wait(lab.PATIENCE)

        lab.run_ranks(4, worker)

    def check(self, daemons, results):
        # Gauges are refreshed twice a second.
        lab.poll(lambda: all('state="ready"} 1' in d.metrics()
                             for d in daemons), "each node has one peer")
        pages = [daemon.metrics() for daemon in daemons]
        size = 4 * self.ELEMENTS
        wire = {}
        for node, page in enumerate(pages):
            for state, count in (("ready", 1), ("connecting", 0),
                                 ("failed", 0)):
                self.assertEqual(series(page, "ballast_peers", state=state),
                                 count)
            self.assertEqual(series(page, "ballast_membership_generation"), 1)
            self.assertEqual(series(page, "ballast_client_sessions"), 2)
            for direction in ("sent", "received"):
                wire[node, direction] = series(
                    page, "ballast_exchange_wire_bytes_total",
                    transport="ucx", direction=direction)
                # The page and the workers are told the same.
                self.assertEqual(
                    wire[node, direction],
                    sum(getattr(r, "wire_bytes_" + direction)
                        for r in results[2 * node]))
            self.assertEqual(
                series(page, "ballast_exchange_payload_bytes_total",
                       direction="pushed"), 2 * size * self.STEPS)
            self.assertEqual(
                series(page, "ballast_exchange_payload_bytes_total",
                       direction="published"), size * self.STEPS)
            for phase in ("reduce", "publish"):
                labels = dict(phase=phase)
                self.assertGreaterEqual(
                    series(page, "ballast_exchange_duration_seconds_count",
                           **labels), self.STEPS)
            for stage in ("collect", "reduce", "vote", "update", "publish",
                          "total"):
                self.assertEqual(
                    series(page, "ballast_step_duration_seconds_count",
                           stage=stage), self.STEPS)
            self.assertEqual(series(page, "ballast_step_last_committed"),
                             self.STEPS)
        # exact: half up and half down, per step. Node 0 has sent the initial
        # weights too, which are no step's work.
        for node, initial in ((0, size), (1, 0)):
            payload = self.STEPS * size
            self.assertGreaterEqual(wire[node, "sent"], payload)
            self.assertLess(wire[node, "sent"], 1.02 * (payload + initial))
        self.assertAlmostEqual(wire[0, "sent"], wire[1, "received"],
                               delta=0.01 * wire[0, "sent"])
        self.assertAlmostEqual(wire[1, "sent"], wire[0, "received"],
                               delta=0.01 * wire[1, "sent"])
        waits = [series(page, "ballast_straggler_wait_seconds_total")
                 for page in pages]
        self.assertGreater(waits[1], 0.8 * self.DELAY * self.STEPS)
        self.assertLess(waits[0], waits[1])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
