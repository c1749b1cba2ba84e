"""Weights as differences between real daemons: the same bits on all ranks and
in every run, exactly the bytes of the formula, what is counted, and that a
byte which changed in a daemon's memory changes nothing else."""

import hashlib
import os
import re
import sys
import threading
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


def counted(page, name, label=""):
    """A counter of the only job, by the label that follows the job's."""
    found = re.findall(r'ballast_%s_total\{[^}]*%s\} (\S+)\n' %
                       (name, label and '"%s"' % label), page)
    assert len(found) == 1, (name, label, found)
    return float(found[0])


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
        for kind in ("copy", "reference", "result", "resync", "vote",
                     "verify"):
            self.assertEqual(counted(page, "weight_chunks_bad", kind), 0)
        for kind in ("owner", "member", "vote", "resync"):
            self.assertEqual(counted(page, "weight_chunks_healed", kind), 0)
        for what in ("resync", "heal"):
            self.assertEqual(
                counted(page, "exchange_%s_bytes" % what, "sent"), 0)

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

    def test_a_byte_that_changed_is_healed(self):  # I2, I25
        sound, fallbacks, _ = self.run_with_flips({})
        self.assertEqual(sum(fallbacks), 0)
        # Of each element one node is the owner, the other is not.
        for victim in (0, 1):
            for element in (12345, 34567):
                with self.subTest(node=victim, element=element):
                    digests, fallbacks, daemons = self.run_with_flips(
                        {victim: element})
                    self.assertEqual(digests, sound)
                    self.assertEqual(fallbacks[victim], 1)
                    self.assertEqual(fallbacks[1 - victim], 0)
                    self.check_healed(daemons, victim)

    def check_healed(self, daemons, victim):
        pages, healed = zip(*daemons)
        page = pages[victim]
        # Before the vote on step 3, not when version 3 is made.
        self.assertEqual(counted(page, "weight_chunks_bad", "verify"), 1)
        self.assertEqual(counted(page, "weight_chunks_bad", "copy"), 0)
        self.assertGreater(counted(page, "weight_chunks_verified"), 0)
        self.assertEqual(counted(page, "weight_chunks_healed", "owner") +
                         counted(page, "weight_chunks_healed", "member"), 1)
        moved = counted(page, "exchange_heal_bytes", "received")
        self.assertGreater(moved, 16)
        self.assertEqual(
            counted(pages[1 - victim], "exchange_heal_bytes", "sent"), moved)
        self.assertEqual([h[0] for h in healed],
                         [1 if n == victim else 0 for n in (0, 1)])
        self.assertIn("has changed in the memory of node %d" % victim,
                      healed[victim][1])
        self.assertIn("healed with the bits of node %d" % (1 - victim),
                      healed[victim][1])

    def test_every_copy_that_changed_ends_the_job(self):  # I23
        errors = []

        def run(rank, worker):
            try:
                worker(rank)
            except ballast.DataLoss as error:
                errors.append(str(error))

        self.run_with_flips({0: 12345, 1: 12346}, run)
        self.assertEqual(len(errors), 2, errors)
        for error in errors:
            self.assertIn('of "w": version 2 has changed in the memory of '
                          'node', error)
            self.assertIn("no node has the bits of version 2: node", error)

    def run_with_flips(self, flips, run=lambda rank, worker: worker(rank)):
        """Digests, fallbacks by rank, and (page, (heals, log)) by node."""
        daemons = self.start_nodes(2)
        fallbacks = [0, 0]
        pages = [None, None]
        shapes = {"w": ((40000,), "float32")}
        all_flipped = threading.Barrier(2)

        def worker(rank):
            with self.session(daemons, rank, 1, job.initial(shapes),
                              exchange="delta4") as s:
                digests = []
                for step in range(1, 5):
                    if step == 3 and rank in flips:
                        self.flip(daemons[rank], s.params["w"], flips[rank])
                    if step == 3:
                        all_flipped.wait(60)
                    s.grads["w"][...] = job.gradient("w", step, rank, shapes)
                    result = s.step(timeout=60)
                    fallbacks[rank] += result.fallbacks
                    digests.append(digest(s.params))
                status = daemons[rank].control("job", s.job)
                pages[rank] = (daemons[rank].metrics(),
                               (int(status.get("weight_chunks_healed", 0)),
                                daemons[rank].log()))
                return digests

        results = lab.run_ranks(2, lambda rank: run(rank, worker))
        self.assertEqual(results[0], results[1])
        self.assert_nothing_is_left(daemons)
        return results[0], fallbacks, pages

    def flip(self, daemon, values, element):
        """Changes an element in the daemon's segment of weights."""
        folder = "/proc/%d/fd" % daemon.pid
        whole = np.array(values).tobytes()
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if not os.readlink(path).startswith("/memfd:"):
                continue
            with open(path, "r+b", buffering=0) as segment:
                at = segment.read().find(whole)
                if at >= 0:
                    segment.seek(at + 4 * element)
                    segment.write(np.float32(1.5).tobytes())
                    return
        self.fail("no segment has the weights")

    def test_published_weights_are_compared_once_in_a_while(self):  # I21
        daemons = self.start_nodes(2)
        shapes = {"w": ((20000,), "bfloat16")}

        def worker(rank):
            with self.session(
                    daemons, rank, 1, job.initial(shapes),
                    exchange="delta4 weights.resync_every_steps=200") as s:
                moved = []
                for step in range(1, 203):
                    s.grads["w"][...] = job.gradient("w", step % 7, rank,
                                                     shapes)
                    s.step(timeout=60)
                    if step in (198, 202):
                        moved.append(counted(daemons[rank].metrics(),
                                             "exchange_resync_bytes", "sent"))
                self.assertEqual(
                    counted(daemons[rank].metrics(), "weight_chunks_bad",
                            "resync"), 0)
                return digest(s.params), moved

        results = lab.run_ranks(2, worker)
        self.assertEqual(results[0][0], results[1][0])
        for _, (before, after) in results:
            self.assertEqual(before, 0)
            self.assertGreater(after, 0)  # its own half of the model
        self.assertGreaterEqual(sum(moved[1] for _, moved in results), 40000)
        self.assert_nothing_is_left(daemons)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
