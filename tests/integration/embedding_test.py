"""Means of GPT-2's embedding and of awkward tensors, on real nodes of several
ranks: the identity codec against whole sums, int4 against numpy and its
analytic bound, and the payload to the byte (T0 of ZeRO++'s row; its hpZ part
is in two_nodes_test)."""

import functools
import sys
import unittest

import lab
import nodes

if not lab.missing():
    import numpy as np

_SHAPES = {"wte": (50257, 768), "bias": (2305,), "scale": (7,), "none": (0, 3)}
_BLOCK = 128
_HIGHEST = 7.0  # code of int4, sym


@functools.lru_cache(maxsize=None)
def _values(name, seed):
    size = int(np.prod(_SHAPES[name]))
    return np.random.default_rng(seed).standard_normal(size, np.float32)


def _integers(name, rank):
    index = np.arange(int(np.prod(_SHAPES[name])), dtype=np.int32)
    return ((index * (7 + rank) + 5 * rank) % 33 - 16).astype(np.float32)


def _total(arrays):
    """In double precision."""
    total = np.zeros(1)
    for array in arrays:
        total = total + array
    return total


def _tree(values):
    if len(values) == 1:
        return values[0]
    left = 1 << (len(values) - 1).bit_length() - 1
    return _tree(values[:left]) + _tree(values[left:])


def _blocks(values):
    """A row each; the last one padded with zeros."""
    count = -(-values.size // _BLOCK)
    padded = np.zeros(count * _BLOCK, values.dtype)
    padded[:values.size] = values
    return padded.reshape(count, _BLOCK)


def _int4(values):
    """Encoded and decoded; and half a step of each element's block."""
    blocks = _blocks(values)
    largest = np.abs(blocks).max(axis=1, keepdims=True, initial=0)
    inverse = np.float32(_HIGHEST) / largest
    scale = largest / np.float32(_HIGHEST)
    decoded = np.rint(blocks * inverse) * scale + np.float32(0)  # no -0
    half = np.broadcast_to(scale / 2, blocks.shape)
    return decoded.ravel()[:values.size], half.ravel()[:values.size]


class EmbeddingTest(nodes.NodesCase):

    def run_job(self, count, workers, exchange, gradient):
        """One step from zero: the means, and what all nodes sent of them."""
        daemons = self.start_nodes(count)
        zeros = {name: np.zeros(shape, np.float32)
                 for name, shape in _SHAPES.items()}

        def worker(rank):
            with self.session(daemons, rank, workers, zeros, exchange=exchange,
                              optimizer={"name": "sgd", "lr": 1.0}) as s:
                for name in s.grads:
                    s.grads[name][...] = gradient(name, rank).reshape(
                        _SHAPES[name])
                payload = s.step().payload_bytes
                means = {n: 0 - np.array(v).ravel()
                         for n, v in s.params.items()}
                return means if rank % workers == 0 else None, payload

        results = lab.run_ranks(count * workers, worker)
        self.assert_nothing_is_left(daemons)
        first = results[0][0]
        for means, _ in results[workers::workers]:  # I25
            for name, have in means.items():
                self.assertBitsEqual(have, first[name], name)
        return first, sum(payload for _, payload in results[::workers])

    def check_exact(self, count, workers, sums):  # T0 (a), I6, I7
        """`sums`: subtrees of the canonical tree that a node's ranks are."""
        means, payload = self.run_job(count, workers, "exact", _integers)
        world = count * workers
        for name in _SHAPES:
            whole = _total(_integers(name, rank) for rank in range(world))
            expected = (whole / world).astype(np.float32)
            self.assertBitsEqual(means[name], expected, name)
        # The control: slices in another owner's place.
        wte = means["wte"]
        moved = np.roll(wte, wte.size // count)
        self.assertFalse(np.array_equal(moved, wte))
        elements = sum(int(np.prod(shape)) for shape in _SHAPES.values())
        self.assertEqual(payload, (count - 1) * 4 * (sums + 1) * elements)

    def check_int4(self, count, workers):  # T0 (b) and (c)
        means, payload = self.run_job(
            count, workers, "gradients.codec=int4 gradients.block=%d" % _BLOCK,
            lambda name, rank: _values(name, rank))
        world = np.float32(count * workers)
        raw = coded = 0
        for name in _SHAPES:
            ranks = [_values(name, rank) for rank in range(int(world))]
            sums = [_tree(ranks[n * workers:(n + 1) * workers])
                    for n in range(count)]
            total, bound = None, 0.0
            for part in sums:
                decoded, half = _int4(part)
                total = decoded if total is None else total + decoded
                bound = bound + half.astype(np.float64)
            self.assertBitsEqual(means[name], total / world, name)
            # Against what no codec has touched, in double precision.
            exact = _total(ranks) / float(world)
            error = np.abs(means[name] - exact)
            slack = 1e-5 * np.abs(exact).max(initial=0)
            self.assertTrue(np.all(error <= bound / float(world) + slack), name)
            if name == "wte":
                self.check_spread(means[name], exact)
                # The controls: a bound a third as large, a node left out.
                self.assertFalse(np.all(error <= bound / float(3 * world)))
                fewer = _tree(ranks[:-workers]) / world
                self.assertFalse(
                    np.all(np.abs(fewer - exact) <= bound / float(world)))
            raw += 4 * exact.size
            coded += -(-exact.size // 2) + 4 * -(-exact.size // _BLOCK)
        self.assertEqual(payload, (count - 1) * (raw + coded))

    def check_spread(self, means, exact):
        """Relative L2 of normal values: within 5 % of what the steps of their
        blocks make of errors that are even in [-1/2, 1/2]."""
        have = np.linalg.norm(means - exact) / np.linalg.norm(exact)
        largest = np.abs(_blocks(_values("wte", 99))).max(axis=1)
        expected = np.sqrt(np.mean((largest / _HIGHEST) ** 2) / 12)
        self.assertAlmostEqual(have / expected, 1.0, delta=0.05)

    def test_exact_on_two_nodes_of_three(self):
        self.check_exact(2, 3, sums=2)

    def test_int4_on_three_nodes_of_two(self):
        self.check_int4(3, 2)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
