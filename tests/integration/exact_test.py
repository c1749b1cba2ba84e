"""`exact` is exact: the daemon's weights equal the scalar reference's."""

import math
import sys
import unittest

import lab

if not lab.missing():
    import numpy as np
    import ballast
    import job

_ADAMW = {"name": "adamw", "lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8,
          "weight_decay": 0.1}


class ExactTest(lab.TestCase):

    def check_against_reference(self, world, optimizer, steps=4,
                                clipping=None, no_decay=(), **options):
        daemon = self.start_daemon()
        expected = job.Reference(world, optimizer, clipping, no_decay)
        reports, bits = [], []
        for step in range(1, steps + 1):
            reports.append(expected.step(step))
            bits.append({n: np.array(expected.weight(n)) for n in job.SHAPES})
        groups = None
        if no_decay:
            groups = [{"match": list(no_decay), "weight_decay": 0.0}]

        def worker(rank):
            with daemon.session(rank, world, job.initial(),
                                optimizer=optimizer, param_groups=groups,
                                gradient_clipping=clipping,
                                **options) as session:
                def check(step, result):
                    report = reports[step - 1]
                    self.assertEqual(result.step, step)
                    self.assertEqual(result.weight_version, step)
                    self.assertEqual(result.grad_norm, report["grad_norm"])
                    self.assertEqual(result.clip_factor,
                                     report["clip_factor"])
                    self.assertFalse(result.skipped)
                    self.assertEqual(result.fallbacks, 0)
                    for name, value in bits[step - 1].items():
                        self.assertBitsEqual(session.params[name], value,
                                             "%s, step %d" % (name, step))
                job.train(session, steps, check)

        lab.run_ranks(world, worker)

    def test_one_worker_adamw(self):  # I25
        self.check_against_reference(1, _ADAMW, clipping=0.5)

    def test_four_workers_adamw(self):  # I6, I25
        self.check_against_reference(
            4, _ADAMW, clipping=0.5,
            no_decay=("layer.0.bias", "layer.1.bias"))

    def test_three_workers_adam(self):  # I6: not a power of two
        self.check_against_reference(
            3, {"name": "adam", "lr": 0.01, "betas": (0.9, 0.999),
                "eps": 1e-8, "weight_decay": 0.01})

    def test_two_workers_sgd_nesterov(self):
        self.check_against_reference(
            2, {"name": "sgd", "lr": 0.01, "momentum": 0.9, "dampening": 0.0,
                "weight_decay": 0.01, "nesterov": True})

    def test_two_workers_lion(self):
        self.check_against_reference(
            2, {"name": "lion", "lr": 0.001, "betas": (0.9, 0.99),
                "weight_decay": 0.1})

    def test_two_workers_adagrad(self):
        self.check_against_reference(
            2, {"name": "adagrad", "lr": 0.01, "eps": 1e-10, "lr_decay": 0.1,
                "weight_decay": 0.01, "initial_accumulator_value": 0.25})

    def test_bucket_size_changes_no_bit(self):  # I9
        for bucket_bytes in (8192, 1 << 20):
            with self.subTest(bucket_bytes=bucket_bytes):
                self.check_against_reference(2, _ADAMW, steps=2,
                                             bucket_bytes=bucket_bytes)

    def test_push_order_changes_no_bit(self):  # I9
        daemon = self.start_daemon()
        expected = job.Reference(2, _ADAMW)
        for step in (1, 2):
            expected.step(step)

        def worker(rank):
            with daemon.session(rank, 2, job.initial(), optimizer=_ADAMW,
                                bucket_bytes=8192) as session:
                for step in session.steps(2):
                    session.param_groups[0]["lr"] = job.learning_rate(step)
                    names = sorted(session.grads, reverse=(rank == 1))
                    for name in names:
                        session.grads[name][...] = job.gradient(name, step,
                                                                rank)
                        session.push(name)
                    session.step()
                for name in job.SHAPES:
                    self.assertBitsEqual(session.params[name],
                                         expected.weight(name), name)

        lab.run_ranks(2, worker)


class ShapesTest(lab.TestCase):

    def shapes(self):
        shapes = {}
        for count in (0, 1, 7, 2047, 2048, 2049, 100003):
            for dtype in ("float32", "bfloat16", "float16"):
                shapes["n%d.%s" % (count, dtype)] = ((count,), dtype)
        shapes.update({
            "d0": ((), "float32"), "d2": ((3, 683), "bfloat16"),
            "d3": ((2, 3, 5), "float16"), "d4": ((2, 2, 2, 257), "float32"),
            "d4.empty": ((4, 0, 2, 2), "float32")})
        return shapes

    def test_the_mean_of_ones_is_one(self):  # I4, I5, I6
        one = {"float32": np.float32(1), "float16": np.float16(1),
               "bfloat16": np.uint16(0x3f80)}
        minus_one = {"float32": np.float32(-1), "float16": np.float16(-1),
                     "bfloat16": np.uint16(0xbf80)}
        shapes = self.shapes()
        storage = {"float32": np.float32, "float16": np.float16,
                   "bfloat16": np.uint16}
        tensors = {}
        for name, (shape, dtype) in shapes.items():
            zeros = np.zeros(shape, storage[dtype])
            tensors[name] = (zeros, dtype) if dtype == "bfloat16" else zeros
        elements = sum(math.prod(shape) for shape, _ in shapes.values())
        for world in (1, 3, 4):
            daemon = self.start_daemon()

            def worker(rank, world=world, daemon=daemon):
                with daemon.session(rank, world, tensors) as session:
                    for name, (shape, dtype) in shapes.items():
                        self.assertEqual(session.params[name].shape, shape)
                        session.grads[name][...] = one[dtype]
                    result = session.step()
                    self.assertAlmostEqual(result.grad_norm,
                                           math.sqrt(elements), places=9)
                    for name, (shape, dtype) in shapes.items():
                        self.assertBitsEqual(
                            session.params[name],
                            np.full(shape, minus_one[dtype]), name)

            with self.subTest(world=world):
                lab.run_ranks(world, worker)

    def test_a_job_without_elements_is_refused(self):  # I4
        daemon = self.start_daemon()
        self.assertRaisesWith(
            ballast.InvalidArgument, "element to train",
            lambda: daemon.session(0, 1, {"w": np.zeros((0,), np.float32)}))

    def test_frozen_tensors_are_published_and_stay(self):
        daemon = self.start_daemon()
        tensors = {"w": np.zeros(5, np.float32),
                   "table": np.arange(3000, dtype=np.float32)}

        def worker(rank):
            with daemon.session(rank, 2, tensors, trainable="w") as s:
                self.assertBitsEqual(s.params["table"], tensors["table"])
                self.assertNotIn("table", s.grads)
                s.grads["w"][...] = 1
                s.step()
                self.assertBitsEqual(s.params["table"], tensors["table"])
                self.assertBitsEqual(s.params["w"],
                                     np.full(5, -1, np.float32))

        lab.run_ranks(2, worker)


class StepTest(lab.TestCase):

    TENSORS = {}

    def setUp(self):
        self.TENSORS = {"w": np.zeros(3000, np.float32),
                        "b": np.zeros(2, np.float32)}

    def test_a_nan_of_one_rank_skips_the_step_everywhere(self):  # I10
        daemon = self.start_daemon()

        def worker(rank):
            with daemon.session(rank, 3, self.TENSORS) as s:
                for bad in (np.nan, np.inf, -np.inf):
                    s.grads["w"][...] = 1
                    s.grads["b"][...] = 1
                    if rank == 2:
                        s.grads["b"][1] = bad
                    result = s.step()
                    self.assertTrue(result.skipped)
                    self.assertEqual(result.optimizer_step, 0)
                    self.assertFalse(np.any(s.params["w"]))
                s.grads["b"][...] = 1
                result = s.step()
                self.assertFalse(result.skipped)
                self.assertEqual((result.step, result.optimizer_step), (4, 1))
                self.assertTrue(np.all(s.params["w"] == -1))

        lab.run_ranks(3, worker)

    def test_returning_at_commit(self):  # I2
        daemon = self.start_daemon()

        def worker(rank):
            with daemon.session(rank, 2, self.TENSORS) as s:
                for step in range(1, 20):
                    s.grads["w"][...] = 1
                    s.grads["b"][...] = 2
                    s.step(wait=False)
                    s.wait("w")
                    self.assertTrue(np.all(s.params["w"] == -step))
                    s.wait("b")
                    self.assertTrue(np.all(s.params["b"] == -2 * step))

        lab.run_ranks(2, worker)

    def test_a_held_job_goes_on(self):  # I20
        daemon = self.start_daemon()
        described = {"w": ((3000,), "float32"), "b": ((2,), "float32")}

        def first(rank):
            s = daemon.session(rank, 2, self.TENSORS)
            s.grads["w"][...] = 1
            s.param_groups[0]["lr"] = 0.5
            s.step(cursor=b"rank %d" % rank)
            s.detach()
            self.assertTrue(np.all(s.params["w"] == -0.5))  # frozen view

        def second(rank):
            with daemon.session(rank, 2, described, resume="must") as s:
                self.assertTrue(s.resumed)
                self.assertEqual(s.cursor, b"rank %d" % rank)
                self.assertEqual(s.open_step, 2)
                self.assertEqual(s.param_groups[0]["lr"], 0.5)
                self.assertTrue(np.all(s.params["w"] == -0.5))
                s.grads["w"][...] = 1
                self.assertEqual(s.step().step, 2)
                self.assertTrue(np.all(s.params["w"] == -1))

        lab.run_ranks(2, first)
        self.assertRaisesWith(
            ballast.FailedPrecondition, "job", lambda: daemon.session(
                0, 2, self.TENSORS, resume="never"))
        lab.run_ranks(2, second)

    def test_views_of_a_former_worker_are_frozen(self):
        daemon = self.start_daemon()
        tensors = {"w": np.zeros(5, np.float32)}
        old = daemon.session(0, 1, tensors)
        old.grads["w"][:] = 1
        old.step()
        weights, gradient = old.params["w"], old.grads["w"]
        old.detach()
        with daemon.session(0, 1, tensors) as new:
            new.grads["w"][:] = 5
            gradient[:] = 100
            new.step()
            self.assertBitsEqual(new.params["w"], np.full(5, -6, np.float32))
            self.assertBitsEqual(weights, np.full(5, -1, np.float32))

    def test_a_dropped_session_leaves_its_place(self):  # I28
        daemon = self.start_daemon()
        tensors = {"w": np.zeros(5, np.float32)}
        view = daemon.session(0, 1, tensors).params["w"]
        with daemon.session(0, 1, tensors, resume="must") as s:
            s.grads["w"][:] = 1
            s.step()
        self.assertBitsEqual(view, np.zeros(5, np.float32))

    def test_closing_frees_everything(self):  # I28
        daemon = self.start_daemon()
        before = daemon.memfds()
        for _ in range(3):
            def worker(rank):
                with daemon.session(rank, 2, self.TENSORS) as s:
                    s.step()
                    return daemon.memfds()
            self.assertGreater(min(lab.run_ranks(2, worker)), before)
            lab.poll(lambda: daemon.memfds() == before, "memory is freed")

    def test_two_jobs_of_equal_names_of_tensors_are_apart(self):  # I13
        daemon = self.start_daemon()

        def worker(number):
            with daemon.session(0, 1, self.TENSORS,
                                job="job-%d" % number) as s:
                for _ in range(10):
                    s.grads["w"][...] = number + 1
                    s.step()
                self.assertTrue(np.all(s.params["w"] == -10 * (number + 1)))

        lab.run_ranks(3, worker)

    def test_stats_and_state_dict(self):
        daemon = self.start_daemon()
        with daemon.session(0, 1, self.TENSORS) as s:
            s.grads["b"][...] = 1
            s.step()
            stats = s.stats()
            self.assertEqual(stats["summary"]["name"], "job")
            self.assertEqual(int(stats["steps_committed"]), 1)
            state = s.state_dict()
        self.assertTrue(np.all(state["b"] == -1))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
