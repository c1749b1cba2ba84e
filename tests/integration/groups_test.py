"""Partition groups (partition_nodes) between four real daemons: the bits of one
group, the bytes of the formula, a memory of P / p, refusals."""

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


class GroupsTest(nodes.NodesCase):

    STEPS = 4
    NODES = 4
    SHAPES = {"wte": ((301, 777), "float32"), "mlp": ((50021,), "bfloat16"),
              "norm": ((1000,), "float32")}

    def run_job(self, exchange, workers=1, optimizer=None, **options):
        """Weights after each step, all nodes' bytes of all steps, and what
        node 0's daemon says of the job."""
        daemons = self.start_nodes(self.NODES)
        world = self.NODES * workers
        payload = [0] * world
        norms = [[] for _ in range(world)]
        told = []

        def worker(rank):
            with self.session(daemons, rank, workers,
                              job.initial(self.SHAPES),
                              optimizer=optimizer or _ADAMW,
                              gradient_clipping=0.5, exchange=exchange,
                              **options) as s:
                weights = []
                for step in s.steps(self.STEPS):
                    s.param_groups[0]["lr"] = job.learning_rate(step)
                    for name in s.grads:
                        s.grads[name][...] = job.gradient(name, step, rank,
                                                          self.SHAPES)
                    result = s.step()
                    payload[rank] += result.payload_bytes
                    norms[rank].append(result.grad_norm)
                    weights.append({name: np.array(value).tobytes()
                                    for name, value in s.params.items()})
                if rank == 0:
                    told.append(daemons[0].control("job", "job"))
                return weights

        results = lab.run_ranks(world, worker)
        self.assert_nothing_is_left(daemons)
        for weights in results:  # I25
            self.assertEqual(weights, results[0])
        self.assertEqual(len({tuple(n) for n in norms}), 1)
        return results[0], sum(payload[::workers]), norms[0], told[0]

    def sizes(self):
        """Of the model: elements, weights as they are, and as zeropp has
        them (weights, gradients)."""
        elements = raw = weights = gradients = 0
        for shape, dtype in self.SHAPES.values():
            size = int(np.prod(shape))
            width = 2 if dtype == "bfloat16" else 4
            elements += size
            raw += width * size
            if size <= 16 << 10:  # which presets leave alone
                weights += width * size
                gradients += 4 * size
                continue
            weights += size + 4 * _up(size, 256)
            gradients += _up(size, 2) + 4 * _up(size, 128)
        return elements, raw, weights, gradients

    def formula(self, groups_of, weights, gradients):
        """All nodes, per step: (p-1)/p (W + G) + (N/p - 1)/p G, N times."""
        groups = self.NODES // groups_of
        return groups * ((groups_of - 1) * (weights + gradients)
                         + (groups - 1) * gradients)

    def test_exact_has_the_bits_of_one_group(self):  # I8, I15, I21, I25, T37
        elements, raw, _, _ = self.sizes()
        expected, payload, norms, told = self.run_job("exact")
        self.assertEqual(payload, self.STEPS * 3 * (raw + 4 * elements))
        self.assertEqual(told["summary"].get("partition_nodes", 0), 0)
        memory = [int(told["summary"]["bytes"])]
        for groups_of in (2, 1):
            with self.subTest(partition_nodes=groups_of):
                weights, payload, seen, told = self.run_job(
                    {"partition_nodes": groups_of})
                self.assertEqual(weights, expected)
                self.assertEqual(seen, norms)  # counted once
                self.assertEqual(payload, self.STEPS * self.formula(
                    groups_of, raw, 4 * elements))
                self.assertEqual(told["summary"]["partition_nodes"], groups_of)
                memory.append(int(told["summary"]["bytes"]))
        weights, _, _, told = self.run_job("exact partition_nodes=4")
        self.assertEqual(weights, expected)  # all of them are no group
        self.assertEqual(told["summary"].get("partition_nodes", 0), 0)
        # Masters, two moments and the reduced gradient: P / p instead of P / 4.
        for more, memory in zip((1 / 4, 3 / 4), memory[1:]):
            grown = memory - int(told["summary"]["bytes"])
            self.assertAlmostEqual(grown / (16 * elements), more, delta=0.02)

    def test_exact_is_the_reference(self):  # I6, I8
        self.SHAPES = job.SHAPES
        expected = job.Reference(4, _ADAMW, 0.5, ())
        bits = []
        for step in range(1, self.STEPS + 1):
            expected.step(step)
            bits.append({n: np.array(expected.weight(n)).tobytes()
                         for n in job.SHAPES})
        weights, _, _, _ = self.run_job("exact partition_nodes=2")
        self.assertEqual(weights, bits)
        # The control: of one rank fewer it is another training.
        other = job.Reference(3, _ADAMW, 0.5, ())
        other.step(1)
        self.assertNotEqual({n: np.array(other.weight(n)).tobytes()
                             for n in job.SHAPES}, bits[0])

    def test_several_ranks_on_a_node(self):  # I8: 4 x 3 is no power of two
        expected, _, _, _ = self.run_job("exact", workers=3)
        weights, _, _, _ = self.run_job("exact partition_nodes=2", workers=3)
        self.assertEqual(weights, expected)

    def test_zeropp(self):  # I21, I25
        _, raw, weights, gradients = self.sizes()
        for groups_of in (2, 1):
            with self.subTest(partition_nodes=groups_of):
                _, payload, _, _ = self.run_job(
                    "zeropp partition_nodes=%d" % groups_of)
                self.assertEqual(payload, self.STEPS * self.formula(
                    groups_of, weights if groups_of > 1 else raw, gradients))

    def test_two_runs_of_delta4_are_the_same(self):  # I25
        first, payload, _, told = self.run_job("delta4 partition_nodes=2")
        again, other, _, _ = self.run_job("delta4 partition_nodes=2")
        self.assertEqual(first, again)
        self.assertEqual(payload, other)
        self.assertEqual(int(told.get("weight_chunks_bad", 0)), 0)

    def test_refusals(self):
        daemons = self.start_nodes(self.NODES)
        for exchange, words in (
                ({"partition_nodes": 3},
                 "partition_nodes is \"3\", which does not divide the job's 4 "
                 "nodes; use 1, 2, or all"),
                ({"partition_nodes": 0}, "use all, or how many nodes"),
                ("zeropp partition_nodes=2 gradients.error_feedback=true",
                 "partition_nodes is 2 of 4 nodes")):
            with self.assertRaises(ballast.InvalidArgument) as caught:
                self.session(daemons, 0, 1, job.initial(self.SHAPES),
                             exchange=exchange)
            self.assertIn(words, str(caught.exception))

    def test_nodes_that_differ_are_told_so(self):
        daemons = self.start_nodes(self.NODES)
        texts = []

        def worker(rank):
            try:
                with self.session(
                        daemons, rank, 1, job.initial(self.SHAPES),
                        exchange="exact partition_nodes=%d"
                        % (1 if rank == 2 else 2)):
                    self.fail("nodes that differ made a job")
            except ballast.Error as error:
                texts.append(str(error))
                if rank == 2:  # the others would wait for a better one
                    for node in (0, 1, 3):
                        daemons[node].stop()

        lab.run_ranks(self.NODES, worker)
        self.assertTrue(any("exchange is \"exact partition_nodes=1\" on node 2"
                            in text for text in texts), texts)


def _integers(step, micro, rank, count):
    index = np.arange(count, dtype=np.int64)
    return (index * (7 + rank) + 13 * step + 3 * micro + 5 * rank) % 33 - 16


class FlatMeanTest(nodes.NodesCase):
    """T37 in integers, on two nodes of four ranks: (8, 4, 4) and (8, 8, 4)."""

    WORKERS = 4
    NODES = 2
    STEPS = 3
    MICRO_STEPS = 4
    ELEMENTS = 70001

    def expected(self, ranks):
        """By step: minus the flat means up to it, exactly."""
        total = np.zeros(self.ELEMENTS, np.int64)
        values = []
        for step in range(1, self.STEPS + 1):
            for micro in range(self.MICRO_STEPS):
                for rank in ranks:
                    total += _integers(step, micro, rank, self.ELEMENTS)
            values.append((-total / len(ranks)).astype(np.float32))
        return values

    def run_job(self, groups_of):
        """Weights by step of all ranks, and a node's payload by step."""
        daemons = self.start_nodes(self.NODES)

        def worker(rank):
            with self.session(
                    daemons, rank, self.WORKERS,
                    {"w": np.zeros(self.ELEMENTS, np.float32)},
                    optimizer={"name": "sgd", "lr": 1.0}, bucket_bytes=65536,
                    exchange="exact partition_nodes=%d" % groups_of) as s:
                weights, payload = [], []
                for step in s.steps(self.STEPS):
                    s.grads["w"][...] = 0
                    for micro in range(self.MICRO_STEPS):
                        s.grads["w"][...] += _integers(step, micro, rank,
                                                       self.ELEMENTS)
                    payload.append(s.step().payload_bytes)
                    weights.append(np.array(s.params["w"]))
                return weights, payload

        results = lab.run_ranks(self.NODES * self.WORKERS, worker)
        self.assert_nothing_is_left(daemons)
        return results

    def test_values_are_the_flat_mean(self):  # I6, I8, I21, T37
        expected = self.expected(range(self.NODES * self.WORKERS))
        for groups_of in (1, 2):
            with self.subTest(partition_nodes=groups_of):
                results = self.run_job(groups_of)
                for weights, _ in results:
                    for have, want in zip(weights, expected):
                        self.assertBitsEqual(have, want)
                # However many micro-steps, the sums cross once a step: of
                # groups of one all of them, of one group each owner's half,
                # and its weights back.
                whole = 4 * self.ELEMENTS
                for step in range(self.STEPS):
                    sent = [payload[step] for _, payload
                            in results[::self.WORKERS]]
                    self.assertEqual(sum(sent), 2 * whole)
                    if groups_of == 1:
                        self.assertEqual(sent, [whole] * self.NODES)
        # The control: groups that kept their sums would have other means.
        for ranks in (range(4), range(4, 8)):
            alone = self.expected(ranks)
            self.assertFalse(np.array_equal(alone[0], expected[0]))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
