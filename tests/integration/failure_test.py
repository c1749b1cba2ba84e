"""Processes that die, stop and fork: nothing hangs, nothing is left, and a
replaced worker changes no bit."""

import contextlib
import io
import os
import signal
import sys
import threading
import time
import unittest
import unittest.mock

import footprint
import lab

if not lab.missing():
    import numpy as np
    import ballast
    import job

_ADAMW = {"name": "adamw", "lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8,
          "weight_decay": 0.1}

# One rank of the reference job: says where it is and waits to be told on.
_WORKER = """
import os, sys, time
import ballast, job
steps, stop_at, where = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
s = ballast.Session(tensors=job.initial(), bucket_bytes=8192, timeout=60,
                    optimizer=dict(name="adamw", lr=0.01, betas=(0.9, 0.95),
                                   eps=1e-8, weight_decay=0.1))
print("open", s.open_step, s.cursor.decode(), flush=True)
first = s.open_step
for step in s.steps(steps):
    if step == stop_at and where == "before":
        print("stopped", flush=True)
        time.sleep(1000)
    if where == "accumulating" and step == (stop_at or first):
        job.add(s, step)  # into what it finds
        if stop_at:
            print("stopped", flush=True)
            time.sleep(1000)
    else:
        job.fill(s, step)
    s.param_groups[0]["lr"] = job.learning_rate(step)
    if step == stop_at and where == "pushing":
        s.push("head")
        s.push("embedding")
        print("stopped", flush=True)
        time.sleep(1000)
    s.step(cursor=b"after %d" % step)
s.close()
print("done", flush=True)
"""

# One step, and then it waits for its end.
_LAST_STEP = """
import sys, time
import numpy as np
import ballast
s = ballast.Session(tensors={"w": np.zeros(3, np.float32)}, timeout=60,
                    optimizer={"name": "sgd", "lr": 1.0})
s.step()
print("stepped", flush=True)
time.sleep(1000)
"""

_FORKER = """
import os, signal, sys, time
import numpy as np
import ballast
s = ballast.Session(tensors={"w": np.zeros(3, np.float32)}, timeout=30,
                    optimizer={"name": "sgd", "lr": 1.0})
child = os.fork()
if child == 0:
    for call in (s.step, s.close, s.detach, s.stats, lambda: s.push("w")):
        try:
            call()
            print("allowed", flush=True)
        except ballast.FailedPrecondition as error:
            assert "forked child" in str(error), error
    if sys.argv[1] == "stay":
        print("child", os.getpid(), flush=True)
        time.sleep(1000)
    del s
    sys.exit(0)
if sys.argv[1] == "stay":
    time.sleep(1000)
assert os.waitpid(child, 0)[1] == 0
for _ in range(3):
    s.grads["w"][...] = 1
    s.step()
assert np.all(s.params["w"] == -3)
s.close()
print("parent is fine", flush=True)
"""


class WorkerDeathTest(lab.TestCase):

    STEPS = 5

    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon()
        # Workers as processes find job.py and reference.py here.
        path = os.pathsep.join(sys.path)
        patch = unittest.mock.patch.dict(os.environ, PYTHONPATH=path)
        patch.start()
        self.addCleanup(patch.stop)

    def check_replaced(self, where, heirs=""):
        """Rank 1 of 2 is killed in step 3 and replaced; rank 0 only waits."""
        expected = job.Reference(2, _ADAMW)
        for step in range(1, self.STEPS + 1):
            expected.step(step)
        final = []

        def survive():
            with self.daemon.session(0, 2, job.initial(), optimizer=_ADAMW,
                                     bucket_bytes=8192) as s:
                job.train(s, self.STEPS)
                final.append(job.weights(s))

        survivor = threading.Thread(target=survive, daemon=True)
        survivor.start()
        victim = self.start_worker(self.daemon, _WORKER, self.STEPS, 3, where,
                                   rank=1, world=2)
        victim.expect("stopped")
        victim.kill()
        heir = self.start_worker(self.daemon, _WORKER, self.STEPS, 0, heirs,
                                 rank=1, world=2)
        self.assertEqual(heir.expect("open"), "open 3 after 2")
        code, output = heir.finish()
        self.assertEqual(code, 0, output)
        survivor.join(lab.PATIENCE)
        self.assertTrue(final, "the survivor did not finish")
        for name in job.SHAPES:
            self.assertBitsEqual(final[0][name], expected.weight(name), name)

    def test_replaced_before_it_pushed(self):  # I19, I20
        self.check_replaced("before")

    def test_replaced_while_it_pushed(self):  # I19, I20
        self.check_replaced("pushing")

    def test_replaced_while_it_accumulated(self):  # I19, I20
        """Its heir adds to what it finds: nothing, or other bits come out."""
        self.check_replaced("accumulating", "accumulating")

    def test_replaced_after_the_last_step(self):  # I20, I23
        """It died with nothing left to do: its replacement finds the end at
        once, though all others have closed the job."""
        tensors = {"w": np.zeros(3, np.float32)}
        worker = self.start_worker(self.daemon, _LAST_STEP, rank=1, world=2)
        with self.daemon.session(0, 2, tensors) as s:
            s.grads["w"][...] = 1
            s.step()
        worker.expect("stepped")
        worker.kill()
        began = time.monotonic()
        with self.daemon.session(1, 2, tensors, resume="must") as s:
            self.assertEqual(s.open_step, 2)
            self.assertEqual(list(s.steps(1)), [])
            self.assertTrue(np.all(s.params["w"] == -0.5))
        self.assertLess(time.monotonic() - began, lab.PATIENCE / 2)
        lab.poll(lambda: self.daemon.memfds() == 0, "the job is freed")

    def test_replaced_after_it_gave_its_step(self):  # I19, I20
        tensors = {"w": np.zeros(3, np.float32)}

        def survive():
            session = self.daemon.session(1, 2, tensors)
            session.grads["w"][...] = 2
            self.assertTrue(go.wait(lab.PATIENCE))
            session.step()
            gone.set()
            session.grads["w"][...] = 1
            session.step()
            session.close()

        go, gone = threading.Event(), threading.Event()
        survivor = lab.in_background(survive)
        first = self.daemon.session(0, 2, tensors)
        first.grads["w"][...] = 4
        self.assertRaisesWith(ballast.DeadlineExceeded, "rank 1",
                              lambda: first.step(b"first life", timeout=1))
        first.detach()
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            session = self.daemon.session(0, 2, tensors)
        self.assertIn("goes on at step 1 (rank 0); its former worker gave",
                      told.getvalue())
        self.assertTrue(session.step_is_given)
        weights = session.params["w"]
        session.grads["w"][...] = 100  # counts for nothing
        go.set()
        self.assertTrue(gone.wait(lab.PATIENCE))
        self.assertBitsEqual(weights, np.zeros(3, np.float32))
        self.assertEqual(session.step(b"computed again").step, 1)
        self.assertEqual(session.cursor, b"first life")
        self.assertFalse(session.step_is_given)
        self.assertBitsEqual(weights, np.full(3, -3, np.float32))
        session.grads["w"][...] = 1
        session.step(b"mine")
        self.assertEqual(session.cursor, b"mine")
        self.assertBitsEqual(weights, np.full(3, -4, np.float32))
        session.close()
        survivor()

    def test_a_new_run_does_not_wait_for_a_replacement(self):
        tensors = {"w": np.zeros(3, np.float32)}
        worker = self.start_worker(self.daemon, _LAST_STEP, rank=1, world=2)
        with self.daemon.session(0, 2, tensors) as s:
            s.step()
        worker.expect("stepped")
        worker.kill()

        def again(rank):
            if rank == 1:  # rank 0, which had closed, comes first
                lab.poll(lambda: "rank 1 has not attached" in
                         self.daemon.control("jobs")["jobs"][0]["waiting_for"],
                         "the new run has begun to gather")
            with self.daemon.session(rank, 2, tensors) as s:
                return s.step().step

        self.assertEqual(lab.run_ranks(2, again), [1, 1])

    def test_survivors_are_told_for_whom_they_wait(self):  # I23
        tensors = {"w": np.zeros(3, np.float32)}

        def other(rank):
            s = self.daemon.session(rank, 2, tensors)
            s.step()
            if rank == 1:
                s.detach()
                return
            error = self.assertRaisesWith(
                ballast.DeadlineExceeded, ["rank 1", "step 2"],
                lambda: s.step(timeout=1.0))
            self.assertIsNone(error.resume_step)
            s.detach()

        lab.run_ranks(2, other)

    def test_a_stopped_worker_is_told_from_a_slow_and_a_dead_one(self):  # I23
        worker = self.start_worker(self.daemon, _LAST_STEP, rank=1, world=2)

        def told():
            name = self.daemon.control("jobs")["jobs"][0]["name"]
            reply = self.daemon.control("job", name)
            return (reply["summary"]["waiting_for"],
                    reply["workers"][1].get("process", ""))

        stopped = ("rank 1 (pid %d) is stopped (SIGSTOP or a debugger): "
                   "kill -CONT %d" % (worker.pid, worker.pid))
        tensors = {"w": np.zeros(3, np.float32)}
        with contextlib.ExitStack() as ends:
            s = self.daemon.session(0, 2, tensors)
            ends.callback(s.detach)
            s.step()
            worker.expect("stepped")  # and sleeps: slow
            lab.poll(lambda: "rank 1 (pid %d) has not pushed" % worker.pid
                     in told()[0], "status says who is slow")
            self.assertEqual(told()[1], "running")
            self.assertNotIn("stopped", told()[0])
            for _ in range(2):
                os.kill(worker.pid, signal.SIGSTOP)
                lab.poll(lambda: told()[1] == "stopped", "it is seen")
                self.assertIn("rank 1 (pid %d) has not pushed" % worker.pid,
                              told()[0])
                self.assertIn(stopped, told()[0])
                os.kill(worker.pid, signal.SIGCONT)
                lab.poll(lambda: told()[1] == "running", "it goes on")
                self.assertNotIn("stopped", told()[0])
            os.kill(worker.pid, signal.SIGSTOP)
            lab.poll(lambda: stopped in told()[0], "it is seen")
            self.assertRaisesWith(ballast.DeadlineExceeded, stopped,
                                  lambda: s.step(timeout=1.0))
            worker.kill()
            lab.poll(lambda: "is gone" in told()[0], "it is dead")
            self.assertEqual(told()[1], "")
            self.assertNotIn("stopped", told()[0])

    def test_a_dead_workers_memory_goes_with_the_hold(self):  # I28
        daemon = self.start_daemon("jobs.hold=1s")
        before = daemon.memfds()
        shared = footprint.shared_memory()
        worker = self.start_worker(daemon, _WORKER, 5, 2, "before")
        worker.expect("stopped")
        self.assertGreater(daemon.memfds(), before)
        worker.kill()
        lab.poll(lambda: daemon.memfds() == before, "the job is freed")
        self.assertEqual(footprint.shared_memory(), shared)


class DaemonDeathTest(lab.TestCase):

    TENSORS = {}

    def setUp(self):
        super().setUp()
        self.TENSORS = {"w": np.zeros(100003, np.float32)}

    def during_steps(self, daemon, number):
        """Two ranks step until `number` hits the daemon; their errors."""
        started = threading.Barrier(3)
        errors = []

        def worker(rank):
            s = daemon.session(rank, 2, self.TENSORS)
            s.step()
            started.wait(lab.PATIENCE)
            try:
                for _ in range(1_000_000):
                    s.step()
            except ballast.Error as error:
                errors.append(error)
            # Views stay readable after the end.
            self.assertTrue(np.all(s.params["w"] == 0))
            return s

        def kill(_):
            started.wait(lab.PATIENCE)
            daemon.signal(number)

        lab.run_ranks(3, lambda r: worker(r) if r < 2 else kill(r))
        return errors

    def test_sigkill_is_an_error_not_a_hang(self):  # I23, I28
        shared = footprint.shared_memory()
        daemon = self.start_daemon()
        errors = self.during_steps(daemon, signal.SIGKILL)
        self.assertEqual(daemon.wait(), 128 + signal.SIGKILL)
        self.assertEqual(len(errors), 2)
        for error in errors:
            self.assertIsInstance(error, ballast.Unavailable)
            self.assertIn("went away", str(error))
        self.assertEqual(footprint.shared_memory(), shared)
        # A restart in the same directory succeeds.
        daemon.start()
        with daemon.session(0, 1, self.TENSORS) as s:
            self.assertEqual(s.step().step, 1)

    def test_sigterm_drains(self):  # I23, I28
        daemon = self.start_daemon()
        errors = self.during_steps(daemon, signal.SIGTERM)
        self.assertEqual(daemon.wait(), 0, daemon.log())
        self.assertEqual([type(e) for e in errors], [ballast.Unavailable] * 2)
        self.assertFalse(os.path.exists(
            os.path.join(daemon.directory, "ballastd.sock")))

    def test_sigterm_of_an_idle_daemon(self):
        daemon = self.start_daemon()
        daemon.signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(), 0, daemon.log())

    def test_a_worker_that_waits_for_others_is_told(self):  # I23
        """In the end: until then it waits for the next daemon
        (opening_test.py)."""
        daemon = self.start_daemon()

        def worker(rank):
            if rank == 1:
                lab.poll(lambda: daemon.memfds() > 0, "rank 0 is attached")
                daemon.signal(signal.SIGKILL)
                return
            self.assertRaisesWith(
                ballast.Unavailable,
                ["the daemon at " + daemon.address, "no daemon at ",
                 "(open_timeout; in Python timeout=)", "start ballastd there"],
                lambda: daemon.session(0, 2, self.TENSORS, timeout=10.0))

        lab.run_ranks(2, worker)


class ForkTest(lab.TestCase):

    def test_a_child_can_neither_use_nor_end_it(self):
        daemon = self.start_daemon()
        worker = self.start_worker(daemon, _FORKER, "go")
        code, output = worker.finish()
        self.assertEqual(code, 0, output)
        self.assertIn("parent is fine", output)
        self.assertNotIn("allowed", output)

    def test_a_child_does_not_keep_a_dead_workers_lease(self):  # I28
        daemon = self.start_daemon()
        worker = self.start_worker(daemon, _FORKER, "stay")
        child = int(worker.expect("child").split()[-1])
        self.addCleanup(os.kill, child, signal.SIGKILL)
        os.kill(worker.pid, signal.SIGKILL)
        worker.process.wait()
        os.kill(child, 0)  # it lives, and holds the socket
        with daemon.session(0, 1, {"w": np.zeros(3, np.float32)},
                            resume="must") as s:
            self.assertEqual(s.step().step, 1)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
