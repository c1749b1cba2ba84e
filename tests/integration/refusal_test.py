"""Bad input: each is refused with a clear text and has no effect on a job that
runs at the same time."""

import os
import subprocess
import sys
import tempfile
import unittest

import lab

if not lab.missing():
    import numpy as np
    import ballast


class ConfigTest(lab.TestCase):

    def start_with(self, *arguments):
        return subprocess.run(
            [os.environ["BALLASTD"], *arguments], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=lab.PATIENCE,
            check=False)

    def test_unknown_keys_name_the_nearest(self):  # I21
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
            config.write("listen:\n  worker: unix:///tmp/x.sock\n")
            config.flush()
            done = self.start_with("--config", config.name)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("worker", done.stdout)
        self.assertIn("workers", done.stdout)
        done = self.start_with("--set", "compute.thread=1")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("threads", done.stdout)

    def test_a_live_daemons_socket_is_not_taken(self):
        daemon = self.start_daemon()
        done = self.start_with(*daemon.command[1:])
        self.assertNotEqual(done.returncode, 0)
        with daemon.session(0, 1, {"w": np.zeros(1, np.float32)}) as s:
            s.step()


class RefusalTest(lab.TestCase):
    """Every test runs while a job steps on the same daemon."""

    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon("limits.max_job_bytes=67108864",
                                        "limits.max_workers_per_job=8")
        self.running = self.daemon.session(
            0, 1, {"w": np.zeros(5000, np.float32)}, job="running")
        self.step = 0
        self.assertRuns()
        self.addCleanup(self.assertRuns)

    def assertRuns(self):
        for _ in range(3):
            self.step += 1
            self.running.grads["w"][...] = 1
            self.assertFalse(self.running.step().skipped)
            self.assertTrue(np.all(self.running.params["w"] == -self.step))

    def open(self, rank=0, world=1, tensors=None, **options):
        tensors = tensors or {"w": np.zeros(3, np.float32)}
        return self.daemon.session(rank, world, tensors, **options)

    def test_wrong_dtype(self):  # I5
        self.assertRaisesWith(
            ballast.InvalidArgument, ["'w'", "float64"],
            lambda: self.open(tensors={"w": np.zeros(3)}))

    def test_tensors_that_share_memory(self):  # I16
        both = np.zeros(10, np.float32)
        self.assertRaisesWith(
            ballast.InvalidArgument,
            ['"a" and "b"', "overlap in memory by 8 bytes"],
            lambda: self.open(tensors={"a": both[:6], "b": both[4:]}))
        with self.open(tensors={"a": both[:6], "b": both[6:]}) as s:
            s.step()

    def test_names_outside_the_grammar(self):  # I26
        self.assertRaisesWith(ballast.InvalidArgument, "'../x'",
                              lambda: self.open(job="../x"))
        self.assertRaisesWith(
            ballast.InvalidArgument, "'a b'",
            lambda: self.open(tensors={"a b": np.zeros(1, np.float32)}))

    def test_sizes_beyond_the_bounds(self):  # I26
        self.assertRaisesWith(
            ballast.ResourceExhausted, "max_job_bytes",
            lambda: self.open(tensors={"w": ((1 << 28,), "float32")}))
        self.assertRaisesWith(
            ballast.ResourceExhausted, "17592186044416 bytes",
            lambda: self.open(tensors={"w": ((1 << 41,), "float32")}))
        self.assertRaisesWith(
            ballast.InvalidArgument, "w",
            lambda: self.open(tensors={"w": ((1 << 31, 1 << 31, 1 << 31),
                                             "float32")}))

    def test_worlds_beyond_the_bounds(self):
        self.assertRaisesWith(
            (ballast.InvalidArgument, ballast.ResourceExhausted), "9",
            lambda: self.open(0, 9))

    def test_many_nodes_without_a_link(self):
        self.assertRaisesWith(
            ballast.Error, "node",
            lambda: self.open(0, 4, local_world_size=2, timeout=5))

    def test_exchanges_that_come_later(self):  # I21
        for policy, says in (("delta8", "delta8"), ("nonsense", "nonsense"),
                             ("delta4 secondary_partition=none",
                              "but weights.mode is delta"),
                             ("delta4 gradients.codec=int2",
                              "for deltas of weights only")):
            self.assertRaisesWith(
                (ballast.InvalidArgument, ballast.FailedPrecondition), says,
                lambda p=policy: self.open(exchange=p))

    def test_no_values_and_no_job(self):
        described = {"w": ((3,), "float32")}
        self.assertRaisesWith(ballast.Error, "initial", lambda: self.open(
            tensors=described, timeout=5))
        self.assertRaisesWith(
            ballast.FailedPrecondition, "job",
            lambda: self.open(job="other", resume="must"))

    def test_tensor_lists_that_differ(self):
        alone = self.daemon.memfds()

        def worker(rank):
            tensors = {"a": np.zeros(2, np.float32),
                       "w": np.zeros((2, 3), np.float32)}
            if rank == 1:
                lab.poll(lambda: self.daemon.memfds() > alone,
                         "rank 0 has described the job")
                self.assertRaisesWith(
                    ballast.InvalidArgument, ["\"w\"", "[2, 4]", "[2, 3]"],
                    lambda: self.open(1, 2, dict(
                        tensors, w=np.zeros((2, 4), np.float32))))
                self.assertRaisesWith(
                    ballast.InvalidArgument, ["\"b\"", "\"a\""],
                    lambda: self.open(1, 2, {"b": tensors["a"],
                                             "w": tensors["w"]}))
            with self.open(rank, 2, tensors) as s:
                return s.step().step

        self.assertEqual(lab.run_ranks(2, worker), [1, 1])

    def test_learning_rates_that_differ(self):
        def worker(rank):
            with self.open(rank, 2) as s:
                s.step()
                s.grads["w"][...] = 1
                s.param_groups[0]["lr"] = 1.0 if rank == 0 else 0.5
                error = self.assertRaisesWith(
                    ballast.InvalidArgument, ["lr"], s.step)
                self.assertEqual(error.resume_step, 2)
                self.assertEqual(s.open_step, 2)
                s.param_groups[0]["lr"] = 0.25
                self.assertEqual(s.step().lr, 0.25)
                self.assertTrue(np.all(s.params["w"] == -0.25))

        lab.run_ranks(2, worker)

    def test_a_second_worker_of_a_rank(self):
        with self.open() as s:
            self.assertRaisesWith(
                ballast.AlreadyExists, [str(os.getpid())], self.open)
            self.assertEqual(s.step().step, 1)

    def test_another_world_size(self):
        def worker(rank):
            with self.open(rank, 2) as s:
                if rank == 0:
                    self.assertRaisesWith(
                        ballast.InvalidArgument, ["world"],
                        lambda: self.open(2, 3))
                return s.step().step

        self.assertEqual(lab.run_ranks(2, worker), [1, 1])

    def test_a_rank_that_does_not_come(self):  # I23
        self.assertRaisesWith(
            ballast.DeadlineExceeded, ["rank 1"],
            lambda: self.open(0, 2, timeout=1.0))


class TokenTest(lab.TestCase):

    def test_only_the_right_token_is_let_in(self):  # I26
        with tempfile.NamedTemporaryFile("w") as token:
            token.write("secret\n")
            token.flush()
            daemon = self.start_daemon("security.token_file=" + token.name)
            tensors = {"w": np.zeros(3, np.float32)}
            for wrong in (None, "", "secre", "secret2"):
                self.assertRaisesWith(
                    ballast.PermissionDenied, "token",
                    lambda w=wrong: daemon.session(0, 1, tensors, token=w))
            with daemon.session(0, 1, tensors, token="secret") as s:
                s.step()


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
