"""Weights that are not resident, between real daemons: the same bits as where
they are, ZeRO-3's bytes exactly, memory that goes back, refusals."""

import hashlib
import os
import signal
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
_NONE = " secondary_partition=none"
_PAGE = 4096


def _up(a, b):
    return -(-a // b)


def digest(values):
    sha = hashlib.sha256()
    for name in sorted(values):
        sha.update(np.ascontiguousarray(values[name]).tobytes())
    return sha.hexdigest()


def segment_bytes(daemon):
    """What the kernel says the daemon's segment of weights takes."""
    folder = "/proc/%d/fd" % daemon.pid
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            if "-weights" in os.readlink(path):
                return os.stat(path).st_blocks * 512
        except OSError:
            pass
    raise AssertionError("the daemon has no segment of weights")


class GatherTest(nodes.NodesCase):

    STEPS = 3
    SHAPES = {
        "wte": ((301, 777), "float32"),
        "mlp": ((50021,), "bfloat16"),
        "norm": ((1000,), "float32"),  # too small for a preset's codecs
    }
    FROZEN = {"base": ((70001,), "bfloat16"), **SHAPES}

    def run_job(self, num_nodes, workers, exchange, shapes, **options):
        """Digests after each step, and what the nodes sent in all of them."""
        daemons = self.start_nodes(num_nodes)
        world = num_nodes * workers
        # A node's workers gather together: parts come once per node.
        together = [threading.Barrier(workers) for _ in range(num_nodes)]
        payload = [0] * world
        # A step counts what its node serves until it ends: frozen parts also
        # to a node that is ahead and gathers for the next one.
        counted = threading.Barrier(world)

        def worker(rank):
            with self.session(daemons, rank, workers, job.initial(shapes),
                              optimizer=_ADAMW, gradient_clipping=0.5,
                              trainable=list(self.SHAPES), exchange=exchange,
                              **options) as s:
                names = list(s.params)
                barrier = together[rank // workers]
                self.assertEqual(s.gathers_weights, "none" in exchange)

                def look():
                    if not s.gathers_weights:
                        return digest(s.params)
                    s.gather(names)
                    barrier.wait()
                    seen = digest(s.params)
                    s.release(names)
                    # A gather that follows at once may find them still here.
                    lab.poll(lambda: segment_bytes(daemons[s.rank // workers])
                             == 0, "the pages have gone back")
                    barrier.wait()
                    return seen

                digests = []
                for step in s.steps(self.STEPS):
                    digests.append(look())  # forward
                    self.assertEqual(look(), digests[-1])  # backward
                    for name in s.grads:
                        s.grads[name][...] = job.gradient(name, step, rank,
                                                          shapes)
                    payload[rank] += s.step().payload_bytes
                counted.wait()
                digests.append(look())
                return digests

        results = lab.run_ranks(world, worker)
        self.assert_nothing_is_left(daemons)
        for result in results:  # I25
            self.assertEqual(result, results[0])
        self.assertEqual(len(set(results[0])), self.STEPS + 1)
        return results[0], sum(payload[::workers])

    def test_exact_is_zero3(self):  # I8, I20, I21
        elements = sum(int(np.prod(s)) for s, _ in self.SHAPES.values())
        weights = sum(int(np.prod(s)) * (2 if d == "bfloat16" else 4)
                      for s, d in self.SHAPES.values())
        frozen = 2 * 70001
        for num_nodes, workers in ((2, 2), (3, 1)):
            with self.subTest(nodes=num_nodes, workers=workers):
                resident, payload = self.run_job(num_nodes, workers, "exact",
                                                 self.FROZEN)
                # All nodes together: N times (N-1)/N.
                per_step = (num_nodes - 1) * (weights + 4 * elements)
                self.assertEqual(payload, self.STEPS * per_step)
                gathered, payload = self.run_job(
                    num_nodes, workers, "exact" + _NONE, self.FROZEN)
                self.assertEqual(gathered, resident)
                per_step = (num_nodes - 1) * (
                    2 * (weights + frozen) + 4 * elements)
                self.assertEqual(payload, self.STEPS * per_step)
                # Without frozen tensors: (N-1)/N x (2W + G), as ZeRO-3.
                _, payload = self.run_job(num_nodes, workers, "exact" + _NONE,
                                          self.SHAPES, bucket_bytes=65536)
                self.assertEqual(payload, self.STEPS * (num_nodes - 1) * (
                    2 * weights + 4 * elements))

    def test_partition_groups(self):  # I8, I21: within a group of two nodes
        elements = sum(int(np.prod(s)) for s, _ in self.SHAPES.values())
        weights = sum(int(np.prod(s)) * (2 if d == "bfloat16" else 4)
                      for s, d in self.SHAPES.values())
        resident, _ = self.run_job(4, 1, "exact", self.SHAPES)
        gathered, payload = self.run_job(
            4, 1, "exact partition_nodes=2" + _NONE, self.SHAPES)
        self.assertEqual(gathered, resident)
        # Two groups, each (p-1)(2W + G), and its sums to the other one.
        self.assertEqual(payload, self.STEPS * 2 * (
            2 * weights + 4 * elements + 4 * elements))

    def test_zeropp(self):
        raw = weights = gradients = 0
        for shape, dtype in self.SHAPES.values():
            size = int(np.prod(shape))
            raw += size * (2 if dtype == "bfloat16" else 4)
            if size <= 16 << 10:
                weights += 4 * size
                gradients += 4 * size
            else:
                weights += size + 4 * _up(size, 256)
                gradients += _up(size, 2) + 4 * _up(size, 128)
        resident, payload = self.run_job(2, 2, "zeropp", self.SHAPES)
        self.assertEqual(payload, self.STEPS * (weights + gradients))
        gathered, payload = self.run_job(2, 2, "zeropp" + _NONE, self.SHAPES)
        self.assertEqual(gathered, resident)
        # The initial values are gathered as they are.
        self.assertEqual(payload, 2 * raw + (self.STEPS - 1) * 2 * weights
                         + self.STEPS * gradients)

    def test_memory_goes_back(self):
        daemons = self.start_nodes(2)
        ready = threading.Barrier(2)

        def worker(rank):
            with self.session(daemons, rank, 1, job.initial(self.FROZEN),
                              trainable=list(self.SHAPES),
                              exchange="exact" + _NONE,
                              bucket_bytes=65536) as s:
                daemon = daemons[rank]
                self.assertEqual(segment_bytes(daemon), 0)
                s.gather(["wte"])
                size = s.params["wte"].nbytes
                held = segment_bytes(daemon)
                self.assertGreaterEqual(held, size)
                self.assertLessEqual(held, size + 65536 + 2 * _PAGE)
                status = daemon.control("job", "job")["gather"]
                self.assertEqual(int(status["resident_bytes"]), held)
                self.assertGreater(int(status["payload_pulled"]), 0)
                self.assertIn('ballast_gather_resident_bytes{job_id="job"} %d'
                              % held, daemon.metrics())
                ready.wait()
                s.release(["wte"])
                lab.poll(lambda: segment_bytes(daemon) == 0,
                         "the pages have gone back")
                # What is held stays so over steps, with the new bits.
                s.gather(["norm", "base"])
                before = np.array(s.params["norm"])
                for name in s.grads:
                    s.grads[name][...] = 1
                s.step()
                self.assertTrue(np.all(s.params["norm"] != before))
                copies = s.state_dict()  # of what is not held too
                self.assertEqual(copies["norm"].tobytes(),
                                 s.params["norm"].tobytes())
                self.assertEqual(copies["wte"].shape, (301, 777))
                ready.wait()

        lab.run_ranks(2, worker)
        self.assert_nothing_is_left(daemons)

    def test_refusals(self):
        daemon = self.start_daemon()
        tensors = {"a": np.zeros(50000, np.float32),
                   "b": np.zeros(50000, np.float32)}
        with daemon.session(0, 1, tensors, exchange="exact") as s:
            self.assertRaisesWith(
                ballast.FailedPrecondition, "are resident",
                lambda: s.gather(["a"]))
        policy = "exact secondary_partition=none resident_bytes=250000"
        with daemon.session(0, 1, tensors, exchange=policy, job="none",
                            bucket_bytes=200000) as s:
            self.assertRaisesWith(
                ballast.FailedPrecondition,
                ["params['a'] is not resident", "gather(['a'])"],
                lambda: s.params["a"])
            self.assertRaisesWith(ballast.InvalidArgument, "gather(['a'])",
                                  lambda: s.gather("a"))
            s.gather(["a"])
            self.assertRaisesWith(
                ballast.ResourceExhausted,
                ["bucket 1", "of the 250000 that", "are in use"],
                lambda: s.gather(["b"]))
            self.assertTrue(s.is_held("a"))
            self.assertFalse(s.is_held("b"))
            s.release(["a"])
            s.gather(["b"])
            s.grads["a"][...] = s.grads["b"][...] = 1
            s.step()
            self.assertTrue(np.all(s.params["b"] == -1))

    def test_a_dead_worker_gives_back(self):
        daemon = self.start_daemon()
        script = """if True:
            import numpy as np, ballast, sys
            s = ballast.Session(tensors={"w": np.ones(100000, np.float32)},
                optimizer={"name": "sgd", "lr": 1.0},
                exchange={"secondary_partition": "none"})
            s.gather(["w"])
            print("held", float(s.params["w"].sum()), flush=True)
            sys.stdin.read()
            """
        worker = self.start_worker(daemon, script)
        self.assertEqual(worker.line(), "held 100000.0")
        self.assertGreater(segment_bytes(daemon), 0)
        worker.kill()
        lab.poll(lambda: segment_bytes(daemon) == 0,
                 "the dead worker's pages have gone back")
        again = self.start_worker(daemon, script)
        self.assertEqual(again.expect("held"), "held 100000.0")

    def test_a_dead_owner_is_named(self):  # I23
        daemons = self.start_nodes(2)
        started = threading.Barrier(2)

        def worker(rank):
            s = self.session(daemons, rank, 1, {"w": np.zeros(
                300000, np.float32)}, exchange="exact" + _NONE)
            started.wait()
            if rank == 0:
                daemons[1].signal(signal.SIGKILL)
                daemons[1].wait()
            error = None
            try:
                for _ in range(1000):
                    s.gather(["w"], timeout=60)
                    s.release(["w"])
            except ballast.Error as caught:
                error = caught
            return error

        errors = lab.run_ranks(2, worker)
        self.assertIsInstance(errors[0], ballast.Unavailable)
        self.assertIn("node 1", str(errors[0]))
        self.assertIsInstance(errors[1], ballast.Unavailable)

    def test_a_step_that_a_former_worker_gave(self):  # I23
        """It commits while its replacement gathers for it: there are only
        newer weights then, and what the former worker gave counts."""
        daemon = self.start_daemon()
        tensors = {"w": np.zeros(3, np.float32)}

        def open_one(rank):
            return daemon.session(rank, 2, tensors,
                                  exchange={"secondary_partition": "none"})

        def survive():
            with open_one(1) as session:
                self.assertTrue(go.wait(lab.PATIENCE))
                session.step()
                gone.set()

        go, gone = threading.Event(), threading.Event()
        survivor = lab.in_background(survive)
        first = open_one(0)
        first.grads["w"][...] = 2
        self.assertRaisesWith(ballast.DeadlineExceeded, "rank 1",
                              lambda: first.step(b"first life", timeout=1))
        first.detach()
        with open_one(0) as session:
            self.assertTrue(session.step_is_given)
            session.gather(["w"])
            self.assertBitsEqual(session.params["w"], np.zeros(3, np.float32))
            go.set()
            self.assertTrue(gone.wait(lab.PATIENCE))
            session.release(["w"])
            session.gather(["w"])
            self.assertBitsEqual(session.params["w"],
                                 np.full(3, -1, np.float32))
            self.assertEqual(session.step(b"again").step, 1)
            self.assertEqual(session.cursor, b"first life")
            self.assertTrue(session.is_held("w"))
        survivor()


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
