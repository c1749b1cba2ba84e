"""Snapshots of real daemons: saved on some nodes and ranks, loaded on others,
damaged, interrupted, on disks that are full or read-only."""

import glob
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

import lab
import nodes
from stored import ctl, read_safetensors

if not lab.missing():
    import numpy as np
    import ballast
    import job

_ADAMW = {"name": "adamw", "lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8,
          "weight_decay": 0.1}
_SHAPES = dict(job.SHAPES, wte=((200, 301), "float32")) \
    if not lab.missing() else {}


class SnapshotTest(nodes.NodesCase):

    def setUp(self):
        self.root = tempfile.mkdtemp(prefix="ballast-snap-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)

    def start(self, count, *overrides):
        return self.start_nodes(count, "snapshots.directory=" + self.root,
                                *overrides)

    def names(self):
        return sorted(name for name in
                      os.listdir(os.path.join(self.root, "job"))
                      if name != ".life")

    def shapes_only(self):
        return {name: (shape, dtype)
                for name, (shape, dtype) in _SHAPES.items()}

    def open(self, daemons, rank, workers, stored, **options):
        tensors = options.pop("tensors", None) or (
            self.shapes_only() if stored else job.initial(_SHAPES))
        arguments = dict(optimizer=_ADAMW, gradient_clipping=0.5,
                         trainable=[n for n in _SHAPES if n != "layer.0.bias"])
        arguments.update(options)
        return self.session(daemons, rank, workers, tensors, **arguments)

    def train(self, session, steps):
        for step in session.steps(steps):
            for name in session.grads:
                session.grads[name][...] = job.gradient(
                    name, step, session.rank, _SHAPES)
            session.step(cursor=b"%d of %d" % (session.rank, step))

    def run_job(self, count, workers, steps, stored=False, save=None,
                overrides=(), **options):
        """Opens, trains up to `steps`, saves under the name, closes. What
        rank 0 saw when it opened and closed, and each rank's cursor."""
        daemons = self.start(count, *overrides)
        barrier = threading.Barrier(count * workers)

        def worker(rank):
            with self.open(daemons, rank, workers, stored, **options) as s:
                first = (s.open_step, s.optimizer_step, s.cursor,
                         job.weights(s))
                self.train(s, steps)
                barrier.wait(lab.PATIENCE)
                if save is not None and rank == count * workers - 1:
                    self.assertEqual(s.save(save), "job/" + save)
                barrier.wait(lab.PATIENCE)
                return first, job.weights(s)

        results = lab.run_ranks(count * workers, worker)
        self.assert_nothing_is_left(daemons)
        for daemon in daemons:
            daemon.stop()
        return results

    def export(self, name, *flags):
        out = os.path.join(self.root, "%s%d.safetensors"
                           % (name, len(os.listdir(self.root))))
        code, _, errors = ctl("export", os.path.join(self.root, "job", name),
                              out, *flags)
        self.assertEqual(code, 0, errors)
        with open(out, "rb") as stream:
            return out, stream.read()

    def test_any_nodes_and_ranks_and_back(self):  # I17
        saved = self.run_job(3, 2, 4, save="a")
        path, state = self.export("a", "--state")
        arrays = read_safetensors(path)
        for name, weights in saved[0][1].items():
            self.assertBitsEqual(arrays["weights:" + name], weights, name)
        before = "a"
        for count, workers, name in ((1, 1, "b"), (2, 3, "c"), (5, 1, "d"),
                                     (3, 2, "e")):
            with self.subTest(nodes=count, workers=workers):
                results = self.run_job(count, workers, 4, stored=True,
                                       load=before, save=name)
                before = name
                for rank, ((step, updates, cursor, first), _) in \
                        enumerate(results):
                    self.assertEqual((step, updates), (5, 4))
                    # Cursors are of as many ranks as are saved: none left.
                    self.assertEqual(cursor, b"")
                    for tensor, weights in first.items():  # I25
                        self.assertBitsEqual(weights, saved[0][1][tensor])
                self.assertEqual(self.export(name, "--state")[1], state)

    def test_goes_on_with_the_bits_of_the_run_that_never_stopped(self):  # I20
        for exchange in ("exact", "zeropp", "delta4"):
            with self.subTest(exchange=exchange):
                shutil.rmtree(os.path.join(self.root, "job"),
                              ignore_errors=True)
                whole = self.run_job(2, 2, 6, exchange=exchange,
                                     resume="never")
                part = self.run_job(2, 2, 3, exchange=exchange, save="half",
                                    resume="never")
                rest = self.run_job(2, 2, 6, stored=True, exchange=exchange,
                                    resume="must")
                for rank in range(4):
                    self.assertEqual(rest[rank][0][:3],
                                     (4, 3, b"%d of 3" % rank))
                    for name, weights in whole[0][1].items():
                        self.assertBitsEqual(rest[rank][0][3][name],
                                             part[0][1][name], name)
                        self.assertBitsEqual(rest[rank][1][name], weights,
                                             name)

    def test_a_held_job_ends_with_one(self):
        daemons = self.start(2, "jobs.hold=1s")

        def worker(rank):
            session = self.open(daemons, rank, 1, False)
            self.train(session, 3)
            session.detach()

        lab.run_ranks(2, worker)
        self.assert_nothing_is_left(daemons)
        self.assertEqual(self.names(), ["step-00000003"])
        self.assertTrue(any(
            "its state is in snapshot job/step-00000003" in daemon.log()
            for daemon in daemons))
        for daemon in daemons:
            daemon.stop()
        for (step, *_), _ in self.run_job(1, 2, 4, stored=True, resume="must"):
            self.assertEqual(step, 4)

    def test_a_held_job_is_stored_for_another_number_of_workers(self):
        daemons = self.start(1)

        def worker(rank):
            session = self.open(daemons, rank, 2, False)
            self.train(session, 3)
            weights = job.weights(session)
            session.detach()
            return weights

        before = lab.run_ranks(2, worker)[0]
        # Nobody waits for jobs.hold.
        with self.open(daemons, 0, 1, True, resume="must") as s:
            self.assertEqual(s.open_step, 4)
            for name, array in job.weights(s).items():
                self.assertBitsEqual(array, before[name], name)
            self.train(s, 5)
        self.assertEqual(self.names(), ["step-00000003"])
        self.assert_nothing_is_left(daemons)

    def test_a_shape_that_cannot_be_had_is_told_what_to_do(self):
        daemons = self.start_nodes(1)

        def worker(rank):
            session = self.open(daemons, rank, 2, False)
            self.train(session, 1)
            session.detach()

        lab.run_ranks(2, worker)
        self.assertRaisesWith(
            ballast.InvalidArgument,
            ["1 / 1 / 0 here, 2 / 2 / 0 in job", "start them as they were",
             "snapshots.directory"],
            lambda: self.open(daemons, 0, 1, False))

    def test_schedule_pruning_and_what_is_told(self):
        daemons = self.start(2, "snapshots.every_steps=2", "snapshots.keep=2")

        def worker(rank):
            with self.open(daemons, rank, 1, False) as s:
                for last in (2, 4, 6):
                    self.train(s, last)
                    lab.poll(lambda: s.stats()["snapshots"]["last_step"]
                             == last, "the snapshot of step %d" % last)
                return s.stats()["snapshots"], daemons[rank].metrics()

        for status, page in lab.run_ranks(2, worker):
            self.assertEqual(status["saved"], 3)
            self.assertEqual(status["failed"], 0)
            self.assertEqual(status["last_path"], "job/step-00000006")
            self.assertRegex(
                page, r'ballast_snapshots_total\{[^}]*outcome="saved"\} 3\n')
            self.assertRegex(page, r"ballast_snapshot_last_step\{[^}]*\} 6\n")
        self.assertEqual(self.names(), ["step-00000004", "step-00000006"])
        code, output, _ = ctl("list", self.root)
        self.assertEqual(code, 0)
        self.assertIn("job/step-00000006", output)
        for name in self.names():
            code, output, errors = ctl("verify", os.path.join(
                self.root, "job", name))
            self.assertEqual(code, 0, errors)
            self.assertIn("every checksum holds", output)

    def test_an_operator_saves_at_any_node(self):
        daemons = self.start(2)
        done = threading.Barrier(3)

        def worker(rank):
            with self.open(daemons, rank, 1, False) as s:
                self.train(s, 2)
                done.wait(lab.PATIENCE)
                done.wait(lab.PATIENCE)

        def operator():
            done.wait(lab.PATIENCE)
            for daemon, name in ((daemons[0], "zero"), (daemons[1], "one")):
                reply = daemon.control("checkpoint", "save", "job", name)
                self.assertEqual(reply["path"], "job/" + name)
                self.assertEqual(reply["step"], 2)
            self.assertIsNone(
                daemons[0].control("checkpoint", "save", "other"))
            self.assertIsNone(
                daemons[0].control("checkpoint", "save", "job", "../x"))
            done.wait(lab.PATIENCE)

        lab.run_ranks(3, lambda rank: operator() if rank == 2
                      else worker(rank))
        self.assertEqual(self.names(), ["one", "zero"])

    def test_weights_are_read_by_others(self):
        results = self.run_job(2, 1, 2, save="best")
        path, _ = self.export("best")
        arrays = read_safetensors(path)
        self.assertEqual(sorted(arrays), sorted(_SHAPES))
        for name, weights in results[0][1].items():
            self.assertEqual(arrays[name].shape, _SHAPES[name][0])
            self.assertBitsEqual(arrays[name], weights, name)

    @unittest.skipUnless(importlib.util.find_spec("safetensors"),
                         "no package safetensors")
    def test_weights_are_read_by_the_safetensors_library(self):
        import safetensors
        results = self.run_job(2, 1, 2, save="best")
        # Without a framework: numpy has no bfloat16.
        with open(self.export("best")[0], "rb") as stream:
            tensors = dict(safetensors.deserialize(stream.read()))
        self.assertEqual(sorted(tensors), sorted(_SHAPES))
        for name, weights in results[0][1].items():
            self.assertEqual(tuple(tensors[name]["shape"]), _SHAPES[name][0])
            self.assertEqual(bytes(tensors[name]["data"]), weights.tobytes(),
                             name)

    def test_damage_is_found_and_training_can_start_anew(self):  # I27
        self.run_job(1, 1, 2, save="good")
        folder = os.path.join(self.root, "job")
        shard = os.path.join(folder, "good", "shard-00000-of-00001.safetensors")
        size = os.path.getsize(shard)

        def flip(at):
            with open(shard, "r+b") as stream:
                stream.seek(at)
                byte = stream.read(1)
                stream.seek(at)
                stream.write(bytes([byte[0] ^ 1]))

        daemons = self.start(1)
        for damage, mend, says in (
                (lambda: flip(size - 1000), lambda: flip(size - 1000),
                 "checksum"),
                (lambda: flip(20), lambda: flip(20), "header"),
                (lambda: os.truncate(shard, size - 1),
                 lambda: None, "cut short")):
            damage()
            code, _, errors = ctl("verify", os.path.join(folder, "good"))
            self.assertEqual(code, 1)
            self.assertIn(says, errors)
            self.assertRaisesWith(
                ballast.DataLoss, [says, "shard-00000"],
                lambda: self.open(daemons, 0, 1, True))
            mend()
        # Another model does not silently start anew.
        other = dict(job.initial(_SHAPES),
                     wte=np.zeros((301, 200), np.float32))
        self.assertRaisesWith(
            ballast.InvalidArgument, ["has shape", 'resume="never"'],
            lambda: self.open(daemons, 0, 1, False, tensors=other))
        with self.open(daemons, 0, 1, False, resume="never") as s:
            self.assertEqual(s.open_step, 1)
            self.assertFalse(s.resumed)

    def test_a_writer_that_is_killed(self):  # I28
        self.run_job(2, 1, 2, save="before")
        daemons = self.start(2, "snapshots.max_bytes_per_second=20000")
        killed = threading.Event()

        def worker(rank):
            try:
                with self.open(daemons, rank, 1, True) as s:
                    self.assertEqual(s.open_step, 3)
                    self.train(s, 3)
                    if rank == 0:
                        saving = threading.Thread(target=kill, daemon=True)
                        saving.start()
                    s.save("torn%d" % rank)
                    self.fail("it was saved")
            except ballast.Error as error:
                return error
            return None

        def kill():
            shard = os.path.join(self.root, "job", ".tmp-*", "shard-*")
            lab.poll(lambda: glob.glob(shard), "a file is being written")
            daemons[1].child.send_signal(9)
            killed.set()

        errors = lab.run_ranks(2, worker)
        self.assertTrue(killed.is_set())
        self.assertTrue(all(errors), errors)
        self.assertNotIn("torn0", self.names())
        self.assertNotIn("torn1", self.names())
        for daemon in daemons:
            daemon.stop()
        results = self.run_job(1, 2, 4, stored=True, save="after")
        self.assertEqual(results[0][0][0], 3)
        self.assertEqual(self.names(), ["after", "before"])

    def test_a_second_life_beside_one_that_still_runs(self):
        settings = ("snapshots.every_steps=1", "snapshots.keep=3")

        def train(session, last, scale):
            for step in session.steps(last):
                for name in session.grads:
                    session.grads[name][...] = scale * job.gradient(
                        name, step, session.rank, _SHAPES)
                session.step()

        def train_and_save(session, last, scale):
            for step in range(session.open_step, last + 1):
                train(session, step, scale)
                # One that is due meanwhile would be left out.
                lab.poll(lambda: session.stats()["snapshots"]["last_step"]
                         == step, "the snapshot of step %d" % step)

        first = self.start(1, *settings)
        with self.open(first, 0, 1, False) as old:
            train_and_save(old, 2, 1)
            second = self.start(1, *settings)
            with self.open(second, 0, 1, True, resume="must") as new:
                self.assertEqual(new.open_step, 3)
                train_and_save(new, 3, -1)
                train(old, 6, 1)  # unharmed
                self.assertEqual(old.weight_version, 6)
                lab.poll(lambda: old.stats()["snapshots"]["other_life"],
                         "the first life is told")
                self.assertRaisesWith(
                    ballast.FailedPrecondition,
                    ["another life of the job writes here (since step 3)",
                     "remove job/.life"], old.save)
                train(old, 8, 1)
                status = old.stats()["snapshots"]
                # Its own request, the first that was due, those after it.
                self.assertGreaterEqual(status["superseded"], 3)
                self.assertEqual(status["failed"], 0)
                self.assertIn("since step 3", status["other_life"])
                self.assertIn("since step 3", status["last_error"])
                self.assertRegex(first[0].metrics(),
                                 r'outcome="superseded"\} [1-9]')
                told, = first[0].control("status")["jobs"]
                self.assertIn("no snapshots are saved: another life",
                              told["notice"])
                self.assertEqual(self.names(), ["step-0000000%d" % step
                                                for step in (1, 2, 3)])
                train_and_save(new, 5, -1)
                self.assertEqual(new.stats()["snapshots"]["superseded"], 0)
                weights = job.weights(new)
            names = self.names()
            self.assertEqual(names[-1], "step-00000005")
            self.assertEqual(len(names), 3)
            # The other one has ended: an operator gives the directory back.
            os.remove(os.path.join(self.root, "job", ".life"))
            self.assertEqual(old.save("old"), "job/old")
        for daemon in first + second:
            daemon.stop()
        results = self.run_job(1, 1, 5, stored=True, load="step-00000005")
        for name, array in weights.items():
            self.assertBitsEqual(results[0][0][3][name], array, name)

    def mount(self, options):
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", self.root],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            self.skipTest("cannot mount a tmpfs: " + done.stdout.strip())
        self.addCleanup(subprocess.run, ["umount", "-l", self.root])

    def check_refused(self, *says):
        daemons = self.start(1)
        with self.open(daemons, 0, 1, False) as s:
            self.train(s, 2)
            error = self.assertRaisesWith(ballast.Error, says,
                                          lambda: s.save("x"))
            self.train(s, 4)  # unharmed
            self.assertEqual(s.weight_version, 4)
            status = s.stats()["snapshots"]
            self.assertEqual((status["saved"], status["failed"]), (0, 1))
        return error

    def test_a_full_disk(self):
        self.mount("size=300k")
        self.assertIsInstance(self.check_refused("No space left on device"),
                              ballast.ResourceExhausted)
        self.assertEqual(self.names(), [])  # I28

    def test_a_read_only_disk(self):
        self.mount("size=1m,ro")
        self.check_refused("Read-only file system")

    def test_daemons_that_keep_none_say_so(self):
        daemons = self.start_nodes(1)
        with self.open(daemons, 0, 1, False) as s:
            self.assertRaisesWith(ballast.FailedPrecondition,
                                  "snapshots.directory", s.save)
        self.assertRaisesWith(
            ballast.FailedPrecondition, "snapshots.directory",
            lambda: self.open(daemons, 0, 1, False, load="x"))
        other = self.start(1)
        self.assertRaisesWith(ballast.NotFound, "job/x",
                              lambda: self.open(other, 0, 1, False, load="x"))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
