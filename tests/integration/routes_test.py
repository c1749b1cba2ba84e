"""Exchange algorithms between real daemons: no bit depends on them, and what
was chosen is told."""

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


class RoutesTest(nodes.NodesCase):

    STEPS = 3
    SHAPES = {"wte": ((301, 77), "float32"), "mlp": ((5021,), "bfloat16"),
              "norm": ((100,), "float32")}

    def run_job(self, count, exchange, gather, reduce):
        """The final weights, and what `ballastctl job` says of the routes."""
        daemons = self.start_nodes(count, "transport.gather=" + gather,
                                   "transport.reduce=" + reduce)

        def worker(rank):
            with self.session(daemons, rank, 1, job.initial(self.SHAPES),
                              optimizer=_ADAMW, gradient_clipping=0.5,
                              exchange=exchange, bucket_bytes=32768) as s:
                for step in s.steps(self.STEPS):
                    for name in s.grads:
                        s.grads[name][...] = job.gradient(name, step, rank,
                                                          self.SHAPES)
                    s.step()
                routes = daemons[rank].control("job", "job")["routes"]
                self.check_doctor(daemons[rank], count)
                return ({name: np.array(value).tobytes()
                         for name, value in s.params.items()}, routes)

        results = lab.run_ranks(count, worker)
        self.assert_nothing_is_left(daemons)
        for weights, _ in results:  # I25
            self.assertEqual(weights, results[0][0])
        return results[0]

    def check_doctor(self, daemon, count):
        """What `ballastctl doctor` says of a job that runs well."""
        found = {(finding["subject"], finding["check"]): finding
                 for finding in daemon.control("doctor")}
        self.assertEqual(found["daemon", "keeper"]["state"], "warning")
        self.assertEqual(found["job job", "copies"]["state"], "warning")
        links = found["job job", "links"]
        self.assertEqual((links["state"], links["text"]),
                         ("ok", "%d nodes" % count))
        # 0: too fast beside what else the processor did then.
        rate = daemon.control("job", "job")["link_bytes_per_second"]
        self.assertEqual(("job job", "link speed") in found, rate > 0)
        if rate > 0:
            self.assertRegex(
                found["job job", "link speed"]["text"],
                r"^[\d.e+]+ MB/s from here, [\d.e+]+ from the slowest node")

    def check(self, count, exchange, ways):
        expected, routes = self.run_job(count, exchange, "direct", "direct")
        self.assertIn("direct", routes)
        self.assertNotIn("where", routes)
        for gather, reduce in ways:
            with self.subTest(gather=gather, reduce=reduce):
                weights, routes = self.run_job(count, exchange, gather, reduce)
                self.assertEqual(weights, expected)
                if gather != "auto":
                    self.assertRegex(routes, r"gather: \d+ %s;" % gather)
                    self.assertRegex(routes, r"reduce: \d+ %s$" % reduce)

    def test_exact_on_four_nodes(self):  # I9, I25
        self.check(4, "exact", [("doubling", "halving"), ("ring", "pairwise")])

    def test_codes_on_three_nodes(self):
        self.check(3, "zeropp", [("bruck", "bruck"), ("auto", "auto")])

    def test_random_bits_of_delta4_on_three_nodes(self):  # I9, I25
        # After three steps: the differences of each are built on the last.
        self.check(3, "delta4 gradients.rounding=stochastic seed=3",
                   [("ring", "pairwise"), ("bruck", "bruck")])

    def test_what_stands_in_for_another_is_told(self):
        _, routes = self.run_job(3, "zeropp", "doubling", "halving")
        self.assertRegex(
            routes, r"gather: \d+ bruck where doubling does not do; "
            r"reduce: \d+ direct where halving does not do$")

    def test_what_the_links_cost_is_measured(self):
        _, routes = self.run_job(3, "exact", "auto", "auto")
        self.assertRegex(routes, r"^latency \d+ us, \d+ us a message, "
                         r"\d+ MB/s; gather: ")

    def test_nodes_that_would_choose_otherwise_are_refused(self):
        daemons = self.start_nodes(2)
        daemons[1].stop()
        daemons[1] = self.start_daemon(
            "listen.peer=" + self.peers[1], "transport.ucx_devices=lo",
            "transport.gather=ring")
        texts = []

        def worker(rank):
            try:
                with self.session(daemons, rank, 1, job.initial(self.SHAPES)):
                    self.fail("nodes that differ made a job")
            except ballast.Error as error:
                if rank == 1:
                    texts.append(str(error))
                    daemons[0].stop()  # node 0 would wait for a better one

        lab.run_ranks(2, worker)
        self.assertIn("transport.gather is ring on node 1", texts[0])
        self.assertIn("auto on node 0", texts[0])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
