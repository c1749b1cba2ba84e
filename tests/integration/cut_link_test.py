"""Two daemons in network namespaces, one cable between them: when it is cut,
or a daemon stops, freezes or dies, every survivor has an error that names the
other node in bounded time, and nothing is left behind."""

import signal
import sys
import threading
import time
import unittest

import footprint
import lab
import namespaces

if not lab.missing():
    import numpy as np
    import ballast

# The peer timeout is 3 s; membership and a busy machine add to it.
_BOUND = 30.0


@unittest.skipIf(namespaces.missing(), namespaces.missing())
class CutLinkTest(lab.TestCase):

    TENSORS = {} if lab.missing() else {"w": np.zeros(300007, np.float32)}

    def setUp(self):
        super().setUp()
        self.shared = footprint.shared_memory()
        # After all other cleanups.
        self.addCleanup(lambda: self.assertEqual(namespaces.left(), []))
        self.link = namespaces.Link()
        self.addCleanup(self.link.remove)
        self.daemons = [self.start_daemon(
            "listen.peer=%s:7470" % self.link.addresses[node],
            "node.name=host-%d" % node, "transport.peer_timeout=3s",
            "transport.connect_timeout=5s", "jobs.hold=2s",
            "transport.relink_timeout=0s",
            "transport.ucx_devices=" + self.link.devices[node],
            wrap=lambda command, n=node: self.link.inside(n, command))
                        for node in range(2)]
        self.run_to_the_end()  # what a daemon keeps after its first job
        self.fds = [daemon.fds() for daemon in self.daemons]

    def session(self, rank, **options):
        return self.daemons[rank].session(
            rank, 2, self.TENSORS, local_rank=0, local_world_size=1,
            node_rank=rank, coordinator=self.link.addresses[0] + ":7470",
            **options)

    def run_to_the_end(self):
        def worker(rank):
            with self.session(rank) as s:
                for _ in s.steps(3):
                    s.grads["w"][...] = 1
                    s.step()
                return float(s.params["w"][0])

        self.assertEqual(lab.run_ranks(2, worker), [-3.0, -3.0])

    def strike(self, hit, survivors):
        """Both ranks step; hit() in the midst; the survivors' errors."""
        started = threading.Barrier(3)
        errors = {}

        def worker(rank):
            s = self.session(rank)
            s.step()
            started.wait(lab.PATIENCE)
            try:
                while True:
                    s.step(timeout=lab.PATIENCE)
            except ballast.Error as error:
                errors[rank] = error, time.monotonic()

        threads = [threading.Thread(target=worker, args=(rank,), daemon=True)
                   for rank in range(2)]
        for thread in threads:
            thread.start()
        started.wait(lab.PATIENCE)
        before = time.monotonic()
        hit()
        lab.poll(lambda: all(rank in errors for rank in survivors),
                 "all survivors have their errors")
        for rank in survivors:
            error, when = errors[rank]
            self.assertIsInstance(error, ballast.Unavailable, error)
            self.assertIn("node %d" % (1 - rank), str(error))
            self.assertLess(when - before, _BOUND)

    def assert_nothing_is_left(self, nodes):  # I28
        for node in nodes:
            daemon = self.daemons[node]
            lab.poll(lambda d=daemon: d.memfds() == 0,
                     "node %d has freed its memory" % node)
            lab.poll(lambda d=daemon, n=node: d.fds() <= self.fds[n],
                     "node %d has closed what it opened for the job" % node)
        self.assertEqual(footprint.shared_memory(), self.shared)

    def test_a_cut_link(self):  # I23, I28
        for node in (0, 1):
            with self.subTest(end=node):
                self.strike(lambda n=node: self.link.cut(n), survivors=(0, 1))
                self.assert_nothing_is_left((0, 1))
                self.link.mend()
                self.run_to_the_end()  # the daemons have taken no harm

    def test_a_frozen_daemon(self):  # I23, I28
        self.addCleanup(self.daemons[1].signal, signal.SIGCONT)
        self.strike(lambda: self.daemons[1].signal(signal.SIGSTOP), (0,))
        self.assert_nothing_is_left((0,))
        self.daemons[1].signal(signal.SIGCONT)
        self.assert_nothing_is_left((0, 1))
        self.run_to_the_end()

    def test_a_killed_daemon(self):  # I23, I28
        self.strike(lambda: self.daemons[0].signal(signal.SIGKILL), (1,))
        self.assert_nothing_is_left((1,))
        self.daemons[0].wait()
        self.daemons[0].start()
        self.run_to_the_end()

    def test_a_link_that_comes_back_in_time(self):
        """A short cut is not a loss: the step waits and goes on."""
        def worker(rank):
            with self.session(rank) as s:
                s.step()
                if rank == 0:
                    self.link.cut(1)
                    threading.Timer(1.0, self.link.mend).start()
                for _ in s.steps(6):
                    s.grads["w"][...] = 1
                    s.step(timeout=_BOUND)
                return float(s.params["w"][0])

        results = lab.run_ranks(2, worker)
        self.assertEqual(results[0], results[1])
        self.assert_nothing_is_left((0, 1))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
