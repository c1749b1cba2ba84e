"""Weights as differences between real daemons: the same bits on all ranks and
in every run, exactly the bytes of the formula, and what is counted."""

import hashlib
import os
import sys
import unittest

import lab
import nodes

if not lab.missing():
    import numpy as np
    import ballast
    import job

_ADAMW = {"name": "adamw", "lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8,
          "weight_decay": 0.1}


def _up(a, b):
    return -(-a // b)


def digest(values):
    sha = hashlib.sha256()
    for name in sorted(values):
        sha.update(np.ascontiguousarray(values[name]).tobytes())
    return sha.hexdigest()


class DeltaTest(nodes.NodesCase):

    STEPS = 5
    SHAPES = {
        "wte": ((301, 777), "float32"),
        "mlp": ((50021,), "bfloat16"),
        "norm": ((1000,), "float32"),  # too small for the preset
    }

    def run_job(self, exchange, **options):
        daemons = self.start_nodes(2)
        payload = [0] * 4

        def worker(rank):
            with self.session(daemons, rank, 2, job.initial(self.SHAPES),
                              optimizer=_ADAMW, gradient_clipping=0.5,
                              exchange=exchange, **options) as s:
                digests = [digest(s.params)]
                for step in s.steps(self.STEPS):
                    for name in s.grads:
                        s.grads[name][...] = job.gradient(name, step, rank,
                                                          self.SHAPES)
                    result = s.step()
                    payload[rank] += result.payload_bytes
                    digests.append(digest(s.params))
                if rank == 0:
                    self.check_page(daemons[0].metrics())
                return digests

        results = lab.run_ranks(4, worker)
        self.assert_nothing_is_left(daemons)
        for result in results:  # I25
            self.assertEqual(result, results[0])
        self.assertEqual(len(set(results[0])), self.STEPS + 1)
        return results[0], payload[0] + payload[2]

    def check_page(self, page):
        for kind in ("copy", "reference", "result", "resync"):
            self.assertRegex(
                page, r'ballast_weight_chunks_bad_total\{[^}]*kind="%s"\} 0\n'
                % kind)
        self.assertRegex(
            page, r'ballast_exchange_resync_bytes_total\{[^}]*'
            r'direction="sent"\} 0\n')

    def formula(self, bits):
        """W + G (DESIGN 7.4): two nodes send one model a step."""
        total = 0
        for shape, _ in self.SHAPES.values():
            size = int(np.prod(shape))
            if size <= 16 << 10:
                total += 4 * size + 4 * size
                continue
            total += _up(size * bits, 8) + 4 * _up(size, 2048)
            total += _up(size, 2) + 4 * _up(size, 128)
        return total

    def test_two_runs_give_the_same_bits(self):  # I25, I21
        exchange = "delta4 gradients.rounding=stochastic seed=5"
        first, payload = self.run_job(exchange)
        self.assertEqual(payload, self.STEPS * self.formula(4))
        second, _ = self.run_job(exchange)
        self.assertEqual(first, second)
        cut, payload = self.run_job(exchange, bucket_bytes=65536)  # I9
        self.assertEqual(first, cut)
        self.assertEqual(payload, self.STEPS * self.formula(4))
        # The controls: other seeds and other codecs are other bits.
        self.assertNotEqual(
            first, self.run_job(exchange.replace("5", "6"))[0])

    def test_two_bits(self):
        _, payload = self.run_job("delta2")
        self.assertEqual(payload, self.STEPS * self.formula(2))

    def test_a_byte_that_changed_ends_the_job(self):  # I2
        for victim in (0, 1):
            with self.subTest(node=victim):
                self.check_byte(victim)

    def check_byte(self, victim):
        daemons = self.start_nodes(2)
        # All elements of a node's copy but one are what they were.
        value = np.float32(1.25)

        def worker(rank):
            with self.session(daemons, rank, 1,
                              {"w": np.full(40000, value, np.float32)},
                              exchange="delta4") as s:
                for _ in range(2):
                    s.grads["w"][...] = 0
                    s.step()
                if rank == victim:
                    self.flip(daemons[victim], value)
                # The others may have this version before they hear of it.
                for _ in range(2):
                    s.grads["w"][...] = 0
                    s.step(timeout=60)

        errors = []

        def run(rank):
            try:
                worker(rank)
            except ballast.DataLoss as error:
                errors.append(str(error))

        lab.run_ranks(2, run)
        self.assertEqual(len(errors), 2, errors)
        for error in errors:
            self.assertIn('of "w": version 2 has changed in the memory of '
                          'node %d' % victim, error)
        self.assert_nothing_is_left(daemons)

    def flip(self, daemon, value):
        """Changes an element in the daemon's segment of weights."""
        folder = "/proc/%d/fd" % daemon.pid
        whole = np.full(40000, value, np.float32).tobytes()
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if not os.readlink(path).startswith("/memfd:"):
                continue
            with open(path, "r+b", buffering=0) as segment:
                at = segment.read().find(whole)
                if at >= 0:
                    segment.seek(at + 4 * 12345)
                    segment.write(np.float32(1.5).tobytes())
                    return
        self.fail("no segment has the weights")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
