"""Snapshots and replicas of weights that are not resident: every node is lost,
and the job goes on, on the same nodes and ranks and on others."""

import os
import shutil
import signal
import sys
import tempfile
import threading
import unittest

import lab
import nodes
from stored import ctl, read_safetensors

if not lab.missing():
    import ballast
    import job
    from ballast import launch

_ADAMW = {"name": "adamw", "lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8,
          "weight_decay": 0.1}
_NONE = " secondary_partition=none"
_FROZEN = ("layer.0.bias", "embedding")


def look(session):
    """Copies of all weights, which are gathered for it."""
    names = sorted(session.params)
    if session.gathers_weights:
        session.gather(names)
    copies = job.weights(session)
    if session.gathers_weights:
        session.release(names)
    return copies


class SnapshotGatherTest(nodes.NodesCase):

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="ballast-snap-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)

    def open(self, daemons, rank, workers, exchange, stored):
        tensors = {name: (shape, dtype) for name, (shape, dtype)
                   in job.SHAPES.items()} if stored else job.initial()
        return self.session(
            daemons, rank, workers, tensors, exchange=exchange,
            optimizer=_ADAMW, gradient_clipping=0.5, bucket_bytes=32768,
            trainable=[n for n in job.SHAPES if n not in _FROZEN],
            resume="must" if stored else "auto")

    def train(self, session, steps):
        for step in session.steps(steps):
            if session.gathers_weights:  # as forward does
                session.gather(list(session.params))
            for name in session.grads:
                session.grads[name][...] = job.gradient(
                    name, step, session.rank)
            if session.gathers_weights:
                session.release(list(session.params))
            session.step()

    def run_job(self, daemons, workers, exchange, steps, stored=False,
                save=None, ends=None):
        """What every rank saw when it opened, and in the end. `ends(session)`
        instead of closing: the session is of daemons that die."""
        world = len(daemons) * workers
        barrier = threading.Barrier(world)

        def worker(rank):
            session = self.open(daemons, rank, workers, exchange, stored)
            try:
                first = session.open_step, look(session)
                self.train(session, steps)
                barrier.wait(lab.PATIENCE)
                if save is not None and rank == world - 1:
                    self.assertEqual(session.save(save), "job/" + save)
                barrier.wait(lab.PATIENCE)
                last = look(session)
                barrier.wait(lab.PATIENCE)
                if ends is not None:
                    ends(session, rank)
            finally:
                if ends is None:
                    session.close()
            return first, last

        return lab.run_ranks(world, worker)

    def start(self, count):
        return self.start_nodes(count, "snapshots.directory=" + self.root)

    def stop(self, daemons):
        self.assert_nothing_is_left(daemons)
        for daemon in daemons:
            daemon.stop()

    def kill_all(self, daemons):
        """Trains on beyond what is saved, and dies in it: all is lost."""
        killed = threading.Event()

        def ends(session, rank):
            if rank == 0:
                for daemon in daemons:
                    daemon.signal(signal.SIGKILL)
                killed.set()
            killed.wait(lab.PATIENCE)
            with self.assertRaises(ballast.Error):
                self.train(session, session.open_step + 3)

        return ends

    def check_bits(self, found, expected):
        for weights in found:
            self.assertEqual(sorted(weights), sorted(expected))
            for name, array in expected.items():
                self.assertBitsEqual(weights[name], array, name)

    def test_all_nodes_are_lost(self):  # I17, I18, I20
        for exchange in ("exact", "zeropp"):
            with self.subTest(exchange=exchange):
                shutil.rmtree(os.path.join(self.root, "job"),
                              ignore_errors=True)
                gathered = exchange + _NONE
                daemons = self.start_nodes(2)
                (_, whole), *_ = self.run_job(daemons, 2, gathered, 6)
                self.stop(daemons)
                daemons = self.start(2)
                (_, half), *_ = self.run_job(daemons, 2, gathered, 3,
                                             save="half",
                                             ends=self.kill_all(daemons))
                daemons = self.start(2)
                results = self.run_job(daemons, 2, gathered, 6, stored=True)
                self.stop(daemons)
                self.assertEqual({step for (step, _), _ in results}, {4})
                self.check_bits([first for (_, first), _ in results], half)
                self.check_bits([last for _, last in results], whole)
                # The control: it is not what it began with.
                self.assertTrue(any(
                    half[name].tobytes() != whole[name].tobytes()
                    for name in half))

    def test_other_nodes_and_ranks_and_what_others_read(self):  # I8, I17
        daemons = self.start_nodes(3)
        (_, whole), *_ = self.run_job(daemons, 2, "exact" + _NONE, 8)
        self.stop(daemons)
        daemons = self.start(3)
        (_, last), *_ = self.run_job(daemons, 2, "exact" + _NONE, 2, save="a",
                                     ends=self.kill_all(daemons))
        self.check_export("a", last)
        for count, workers, exchange, steps, name in (
                (2, 3, "exact" + _NONE, 4, "b"), (6, 1, "exact", 5, "c"),
                (1, 6, "exact" + _NONE, 6, "d"),
                (3, 2, "exact" + _NONE, 8, "e")):
            with self.subTest(nodes=count, workers=workers):
                daemons = self.start(count)
                results = self.run_job(daemons, workers, exchange, steps,
                                       stored=True, save=name)
                self.stop(daemons)
                self.check_bits([first for (_, first), _ in results], last)
                last = results[0][1]
                self.check_export(name, last)
        self.check_bits([last], whole)

    def check_export(self, name, weights):
        out = os.path.join(self.root, name + ".safetensors")
        folder = os.path.join(self.root, "job", name)
        code, _, errors = ctl("verify", folder)
        self.assertEqual(code, 0, errors)
        code, _, errors = ctl("export", folder, out)
        self.assertEqual(code, 0, errors)
        arrays = read_safetensors(out)
        self.assertEqual(sorted(arrays), sorted(weights))
        for tensor, array in weights.items():
            self.assertEqual(arrays[tensor].shape, array.shape)
            self.assertBitsEqual(arrays[tensor], array, tensor)

    def test_a_lost_node_and_its_replacement(self):  # I20
        daemons = self.start_nodes(3, "replicas.every_steps=2")
        gathered = "zeropp" + _NONE

        def ends(session, rank):
            if rank == 0:
                lab.poll(lambda: (daemons[1].control("job", "job") or {}).get(
                    "replicas", {}).get("last_step", 0) == 4,
                         "a replica is whole")
                daemons[0].signal(signal.SIGKILL)
            with self.assertRaises(ballast.Error):
                self.train(session, 100000)

        results = self.run_job(daemons, 1, gathered, 4, ends=ends)
        peer = "127.0.0.1:%d" % launch.free_port()
        new = self.start_daemon(
            "listen.peer=" + peer, "transport.ucx_devices=lo",
            "transport.peer_timeout=3s", "node.name=new",
            "replicas.every_steps=2")
        self.coordinator = peer
        again = [new, daemons[2], daemons[1]]
        rest = self.run_job(again, 1, gathered, 7, stored=True)
        self.stop(again)
        self.assertEqual({step for (step, _), _ in rest}, {5})
        self.check_bits([first for (_, first), _ in rest], results[0][1])
        daemons = self.start_nodes(3)
        (_, whole), *_ = self.run_job(daemons, 1, gathered, 7)
        self.stop(daemons)
        self.check_bits([last for _, last in rest], whole)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
