"""Error budgets and error feedback between real daemons: codecs that change in
the middle of a job, the same bits on all ranks and in every run, the bytes of
the codecs in force, and what is told of it."""

import hashlib
import re
import sys
import unittest

import lab
import nodes

if not lab.missing():
    import numpy as np
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


class BudgetTest(nodes.NodesCase):

    STEPS = 5
    SHAPES = {
        "wte": ((301, 777), "float32"),
        "mlp": ((50021,), "bfloat16"),
        "norm": ((1000,), "float32"),  # too small for the preset
    }
    LARGE = 2

    def run_job(self, exchange, **options):
        """Digests by version, and of rank 0 the results and the metrics."""
        daemons = self.start_nodes(2)
        payload = [0] * 2
        seen = {}

        def worker(rank):
            with self.session(daemons, rank, 1, job.initial(self.SHAPES),
                              optimizer=_ADAMW, exchange=exchange,
                              **options) as s:
                digests = [digest(s.params)]
                results = []
                for step in s.steps(self.STEPS):
                    for name in s.grads:
                        s.grads[name][...] = job.gradient(name, step, rank,
                                                          self.SHAPES)
                    results.append(s.step())
                    payload[rank] += results[-1].payload_bytes
                    digests.append(digest(s.params))
                if rank == 0:
                    seen["page"] = daemons[0].metrics()
                for r in results:  # no chunk was healed
                    self.assertEqual(sum(q.num_wider
                                         for q in r.quality.values()),
                                     r.fallbacks)
                return digests, [(r.relative_error, r.fallbacks)
                                 for r in results]

        ranks = lab.run_ranks(2, worker)
        self.assert_nothing_is_left(daemons)
        self.assertEqual(ranks[0], ranks[1])  # I25
        digests, told = ranks[0]
        return digests, told, sum(payload), seen["page"]

    def formula(self, gradient_bits):
        """W + G (DESIGN 7.4): two nodes send one model a step."""
        total = 0
        for shape, _ in self.SHAPES.values():
            size = int(np.prod(shape))
            if size <= 16 << 10:
                total += 4 * size + 4 * size
                continue
            total += size + 4 * _up(size, 256)
            total += _up(size * gradient_bits, 8) + 4 * _up(size, 128)
        return total

    def test_a_budget_widens_what_is_beyond_it(self):  # I21, I25
        exchange = "zeropp max_relative_error=0.03 metering.one_in=4"
        digests, told, payload, page = self.run_job(exchange)
        errors = [error for error, _ in told]
        # int4 of noise is beyond it, int8 within; from the second step on.
        self.assertGreater(errors[0], 0.03)
        for error in errors[1:]:
            self.assertLess(error, 0.03)
        self.assertEqual([count for _, count in told],
                         [0] + [self.LARGE] * (self.STEPS - 1))
        self.assertEqual(payload, self.formula(4) +
                         (self.STEPS - 1) * self.formula(8))
        for metric, value in (
                ('codecs_wider{[^}]*path="gradients"', self.LARGE),
                ('codecs_wider{[^}]*path="weights"', 0),
                ('codec_changes_total{[^}]*path="gradients",to="wider"',
                 self.LARGE),
                ('codec_changes_total{[^}]*path="gradients",to="narrower"', 0)):
            self.assertRegex(page, r"ballast_exchange_%s} %d\n" %
                             (metric.replace("{", r"\{"), value))
        again, told_again, _, _ = self.run_job(exchange)
        self.assertEqual((again, told_again), (digests, told))
        cut, told_cut, _, _ = self.run_job(exchange, bucket_bytes=65536)  # I9
        self.assertEqual((cut, told_cut), (digests, told))
        # The control: without a budget nothing changes.
        narrow, told, payload, _ = self.run_job("zeropp metering.one_in=4")
        self.assertEqual(narrow[:2], digests[:2])
        self.assertNotEqual(narrow[2], digests[2])
        self.assertEqual({count for _, count in told}, {0})
        self.assertEqual(payload, self.STEPS * self.formula(4))

    def test_feedback_is_in_the_next_step(self):  # I12
        exchange = "zeropp gradients.error_feedback=true"
        digests, _, payload, page = self.run_job(exchange)
        self.assertEqual(payload, self.STEPS * self.formula(4))
        self.assertNotRegex(page, r"ballast_exchange_residual_norm\{[^}]*} 0\n")
        self.assertEqual(self.run_job(exchange, bucket_bytes=65536)[0], digests)
        plain = self.run_job("zeropp")[0]
        self.assertEqual(plain[:2], digests[:2])  # nothing is left over yet
        self.assertNotEqual(plain[2], digests[2])

    SKIPPED = 3

    def told_by_step(self, exchange):
        """Of each step: its result, what `ballastctl job` says then, by path,
        and the metrics."""
        daemons = self.start_nodes(2)

        def worker(rank):
            told = []
            with self.session(daemons, rank, 1, job.initial(self.SHAPES),
                              optimizer=_ADAMW, exchange=exchange) as s:
                for step in s.steps(self.STEPS):
                    for name in s.grads:
                        s.grads[name][...] = job.gradient(name, step, rank,
                                                          self.SHAPES)
                    if step == self.SKIPPED:
                        s.grads["wte"][7] = np.nan
                    result = s.step()
                    # No step ends before this rank pushes the next one.
                    reply = daemons[rank].control("job", "job")
                    told.append((result, {q["path"]: q for q in
                                          reply.get("quality", [])},
                                 daemons[rank].metrics()))
            return told

        ranks = lab.run_ranks(2, worker)
        self.assert_nothing_is_left(daemons)
        return ranks

    def gauge(self, page, name, path=None):
        found = re.findall(r"^ballast_exchange_%s\{([^}]*)\} (\S+)$" % name,
                           page, re.MULTILINE)
        values = [float(value) for labels, value in found
                  if path is None or 'path="%s"' % path in labels]
        self.assertEqual(len(values), 1, (name, path))
        return values[0]

    def test_a_result_has_what_the_daemon_says(self):  # I21
        ranks = self.told_by_step(
            "zeropp gradients.error_feedback=true gradients.range=clip16 "
            "metering.one_in=4")
        for told in ranks:
            self.assertEqual(len(told), self.STEPS)
            known = []
            for result, by_path, page in told:
                for path, quality in result.quality.items():
                    of_job = by_path[path]
                    # The first weights crossed as they are; a skipped step
                    # measures nothing and publishes nothing for the next one.
                    # The job keeps what it knew.
                    if result.skipped or (path == "weights" and result.step in
                                          (1, self.SKIPPED + 1)):
                        self.assertEqual(quality.sampled, 0)
                        self.assertIsNone(quality.relative_error)
                        self.assertIsNone(quality.clipped_share)
                        self.assertIsNone(quality.residual_norm)
                        continue
                    self.assertGreater(quality.relative_error, 0)
                    self.assertEqual(quality.sampled, int(of_job["sampled"]))
                    for name in ("relative_error", "clipped_share"):
                        value = getattr(quality, name)
                        self.assertEqual(value, of_job.get(name, 0))
                        self.assertAlmostEqual(
                            value, self.gauge(page, name, path), delta=1e-5)
                if result.skipped:
                    continue
                gradients = result.quality["gradients"]
                self.assertGreater(gradients.clipped_share, 0)
                self.assertGreater(gradients.residual_norm, 0)
                self.assertEqual(gradients.residual_norm,
                                 by_path["gradients"]["residual_norm"])
                self.assertAlmostEqual(
                    gradients.residual_norm / self.gauge(page, "residual_norm"),
                    1, delta=1e-5)
                self.assertIsNone(result.quality["weights"].residual_norm)
                known.append(gradients)
            # The control: another step's would not do.
            self.assertEqual(len({q.relative_error for q in known}),
                             self.STEPS - 1)
            self.assertEqual(len({q.residual_norm for q in known}),
                             self.STEPS - 1)
        for (a, _, _), (b, _, _) in zip(*ranks):  # I25; residuals are a node's
            self.assertEqual(a.quality["weights"], b.quality["weights"])
            self.assertEqual(a.quality["gradients"].relative_error,
                             b.quality["gradients"].relative_error)

    def test_what_is_not_measured_is_not_zero(self):  # I21
        for exchange in ("exact", "zeropp metering.one_in=0"):
            for told in self.told_by_step(exchange):
                for result, _, _ in told:
                    self.assertEqual(result.relative_error, 0)
                    for quality in result.quality.values():
                        self.assertEqual(quality.sampled, 0)
                        self.assertIsNone(quality.relative_error)
                        self.assertIsNone(quality.clipped_share)
                        self.assertIsNone(quality.residual_norm)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
