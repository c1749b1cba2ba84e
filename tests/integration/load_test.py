"""New weights for a running job, between real daemons: one version on all
nodes, whatever the exchange; what is saved after it has them; a worker that
dies in it leaves the old weights or the new ones."""

import hashlib
import sys
import tempfile
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


def digest(values):
    sha = hashlib.sha256()
    for name in sorted(values):
        sha.update(np.ascontiguousarray(values[name]).tobytes())
    return sha.hexdigest()


class LoadTest(nodes.NodesCase):

    STEPS, LOADS = 6, 3
    SHAPES = {
        "wte": ((301, 777), "float32"),
        "mlp": ((50021,), "bfloat16"),
        "norm": ((1000,), "float32"),  # too small for a preset's codecs
    }

    def setUp(self):
        super().setUp()
        scratch = tempfile.TemporaryDirectory(prefix="ballast-it-", dir="/tmp")
        self.addCleanup(scratch.cleanup)
        self.root = scratch.name

    def value(self, name, change=3.0):
        """What is loaded: not what any training gives."""
        given = job.initial(self.SHAPES)[name]
        array = given[0] if isinstance(given, tuple) else given
        new = (array + np.asarray(change, array.dtype)).astype(array.dtype)
        return (new, "bfloat16") if isinstance(given, tuple) else new

    def plain(self, value):
        return value[0] if isinstance(value, tuple) else value

    def train_one(self, s, step):
        for name in s.grads:
            s.grads[name][...] = job.gradient(name, step, s.rank, self.SHAPES)
        return s.step(cursor=b"rank %d at %d" % (s.rank, step))

    def run_job(self, exchange, loads=LOADS, **options):
        daemons = self.start_nodes(2, "snapshots.directory=" + self.root)

        def worker(rank):
            with self.session(daemons, rank, 2, job.initial(self.SHAPES),
                              optimizer=_ADAMW, gradient_clipping=0.5,
                              exchange=exchange, resume="never") as s:
                digests = []
                while s.open_step <= self.STEPS:
                    step = s.open_step
                    if step != loads:
                        self.train_one(s, step)
                    else:
                        self.load(s, options)
                    digests.append(digest(s.params))
                if rank == 3:
                    s.save("after")
                return digests, s.optimizer_step
        results = lab.run_ranks(4, worker)
        self.assert_nothing_is_left(daemons)
        for result in results:  # I25
            self.assertEqual(result, results[0])
        return results[0]

    def load(self, s, options):
        updates = s.optimizer_step
        values = {name: self.value(name) for name in self.SHAPES
                  if name != "norm"}
        norm = np.array(s.params["norm"])
        result = s.load_weights(values if s.rank == 0 else None, **options)
        self.assertTrue(result.loaded)
        self.assertEqual((result.step, result.weight_version), (3, 3))
        self.assertEqual(s.optimizer_step,
                         0 if options.get("reset_state") else updates)
        self.assertEqual(s.cursor, b"rank %d at 2" % s.rank)
        self.assertEqual(s.rank0_cursor, b"rank 0 at 2")
        for name, value in values.items():
            self.assertBitsEqual(s.params[name], self.plain(value))
        self.assertBitsEqual(s.params["norm"], norm)  # was not given
        self.assertFalse(any(np.any(s.grads[name]) for name in s.grads))

    def test_all_nodes_show_them_and_go_on(self):  # I1, I25
        ends = set()
        for exchange in ("exact", "zeropp", "delta4", "delta2"):
            with self.subTest(exchange):
                digests, updates = self.run_job(exchange)
                self.assertEqual(updates, self.STEPS - 1)
                self.assertEqual(len(set(digests)), self.STEPS)
                ends.add(digests[-1])
        self.assertEqual(len(ends), 4)

    def test_what_is_saved_afterwards_has_them(self):  # I17
        for exchange, options in (("exact", {}),
                                  ("delta4", {"reset_state": True})):
            with self.subTest(exchange):
                digests, updates = self.run_job(exchange, **options)
                self.assertEqual(updates, 3 if options else self.STEPS - 1)
                daemons = self.start_nodes(
                    2, "snapshots.directory=" + self.root)

                def worker(rank):
                    with self.session(
                            daemons, rank, 2, job.initial(self.SHAPES),
                            job="again", load="job/after", optimizer=_ADAMW,
                            gradient_clipping=0.5, exchange=exchange) as s:
                        self.assertEqual(s.rank0_cursor, b"rank 0 at 6")
                        return digest(s.params), s.optimizer_step
                for result in lab.run_ranks(4, worker):
                    self.assertEqual(result, (digests[-1], updates))

    def test_without_a_load_it_ends_elsewhere(self):  # negative control
        self.assertNotEqual(self.run_job("exact")[0][-1],
                            self.run_job("exact", loads=0)[0][-1])

    def test_who_dies_in_it_leaves_old_weights_or_new_ones(self):
        daemon = self.start_daemon()
        tensors = {"w": np.zeros(5, np.float32)}
        value = {"w": np.arange(5, dtype=np.float32)}
        old, new = tensors["w"], value["w"]
        # (who leaves, after it has handed over, what its place does then)
        for who, gave in ((0, False), (0, True), (1, True)):
            with self.subTest(who=who, gave=gave):
                name = "job-%d-%d" % (who, gave)
                go = threading.Event()

                def survive():
                    with daemon.session(1 - who, 2, tensors, job=name) as s:
                        self.assertTrue(go.wait(lab.PATIENCE))
                        s.load_weights(value)
                        self.assertBitsEqual(s.params["w"], new)
                survivor = lab.in_background(survive)
                first = daemon.session(who, 2, tensors, job=name)
                if gave:
                    self.assertRaisesWith(
                        ballast.DeadlineExceeded, "rank %d" % (1 - who),
                        lambda: first.load_weights(value, timeout=1))
                self.assertBitsEqual(first.params["w"], old)
                first.detach()
                with daemon.session(who, 2, tensors, job=name) as s:
                    self.assertEqual(s.step_is_given, gave)
                    self.assertBitsEqual(s.params["w"], old)
                    go.set()
                    # What a former life gave counts.
                    again = {"w": value["w"] + 7} if gave else value
                    self.assertTrue(s.load_weights(again).loaded)
                    self.assertBitsEqual(s.params["w"], new)
                survivor()

    def test_what_does_not_fit_is_refused(self):
        daemon = self.start_daemon()
        tensors = {"w": np.zeros(3, np.float32), "f": np.ones(2, np.float32)}
        with daemon.session(0, 1, tensors, trainable=["w"]) as s:
            for values, parts in (
                    ({"v": tensors["w"]}, ["'v'", "nearest is w"]),
                    ({"w": np.zeros(4, np.float32)}, ["(3,)", "(4,)"]),
                    ({"w": ((3,), "float32")}, ["without a value"])):
                self.assertRaisesWith((ballast.InvalidArgument, KeyError),
                                      parts, lambda: s.load_weights(values))
            self.assertRaisesWith(
                ballast.FailedPrecondition, "\"f\" is frozen",
                lambda: s.load_weights({"f": np.zeros(2, np.float32)}))
            self.assertEqual(s.open_step, 1)
            s.push("w")
            self.assertRaisesWith(ballast.FailedPrecondition,
                                  "were pushed already", s.load_weights)
            s.step()
        with daemon.session(0, 1, tensors,
                            exchange={"secondary_partition": "none"}) as s:
            self.assertRaisesWith(ballast.FailedPrecondition,
                                  "secondary_partition=none",
                                  lambda: s.load_weights(tensors))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
