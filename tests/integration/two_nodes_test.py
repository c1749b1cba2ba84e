"""Jobs over several daemons, linked by UCX over the loopback device: the same
bits for every nodes x workers, and a named, bounded error for every node that
dies, stops, contradicts the others or never comes."""

import hashlib
import os
import re
import signal
import sys
import threading
import time
import unittest

import lab
import nodes

if not lab.missing():
    import numpy as np
    import ballast
    from ballast import launch
    import job
    import reference

_ADAMW = {"name": "adamw", "lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8,
          "weight_decay": 0.1}

# A bound on every error below: the peer timeout, what membership adds to it,
# and a busy machine.
_BOUND = 30.0


def digest(values):
    """Of all weights, by name."""
    sha = hashlib.sha256()
    for name in sorted(values):
        sha.update(name.encode())
        sha.update(np.ascontiguousarray(values[name]).tobytes())
    return sha.hexdigest()


class ExactTest(nodes.NodesCase):

    STEPS = 4

    def run_job(self, count, workers, steps=STEPS, settings=(), **options):
        daemons = self.start_nodes(count, *settings)

        def worker(rank):
            with self.session(daemons, rank, workers, job.initial(),
                              optimizer=_ADAMW, gradient_clipping=0.5,
                              **options) as s:
                norms = []
                job.train(s, steps,
                          lambda step, result: norms.append(result.grad_norm))
                return digest(job.weights(s)), norms

        results = lab.run_ranks(count * workers, worker)
        self.assert_nothing_is_left(daemons)
        for result in results:  # I25
            self.assertEqual(result, results[0])
        return results[0]

    def reference(self, world):
        run = job.Reference(world, _ADAMW, 0.5)
        reports = [run.step(step) for step in range(1, self.STEPS + 1)]
        return (digest({n: run.weight(n) for n in job.SHAPES}),
                [report["grad_norm"] for report in reports])

    def test_one_by_four_is_two_by_two_is_four_by_one(self):  # I8, I25
        expected = self.reference(4)
        for count, workers in ((1, 4), (2, 2), (4, 1)):
            with self.subTest(nodes=count, workers=workers):
                self.assertEqual(self.run_job(count, workers), expected)

    def test_three_by_one_in_small_buckets(self):  # I4, I9
        self.assertEqual(self.run_job(3, 1, bucket_bytes=8192),
                         self.reference(3))

    def test_zeropp_is_the_reference(self):  # T0, I25
        for count, workers in ((2, 3), (3, 2)):
            with self.subTest(nodes=count, workers=workers):
                expected = self.zeropp(count, workers)
                self.assertEqual(
                    self.run_job(count, workers, exchange="zeropp"), expected)
        # The control: the other way round it is another job.
        self.assertNotEqual(self.zeropp(2, 3), expected)

    def zeropp(self, count, workers):
        """As `reference`, from FORMAT.md 7: node sums by the tree, encoded,
        added in node order; weights encoded from the masters."""
        run = job.Reference(count * workers, _ADAMW, 0.5).run
        gradients = reference.pack_spec(4, 128)
        weights = reference.pack_spec(8, 256)
        is_coded = {name: np.prod(shape) > 16 << 10
                    for name, (shape, _) in job.SHAPES.items()}
        self.assertEqual(sum(is_coded.values()), 1)

        def crossed(spec, values):
            return reference.decode(spec, values.size,
                                    reference.encode(spec, values))

        def tree(values):
            if len(values) == 1:
                return values[0]
            left = 1 << (len(values) - 1).bit_length() - 1
            return tree(values[:left]) + tree(values[left:])

        def mean(name, step):
            total = None
            for node in range(count):
                part = tree([self.widened(job.gradient(name, step, rank), name)
                             for rank in range(node * workers,
                                               (node + 1) * workers)])
                if is_coded[name]:
                    part = crossed(gradients, part)
                total = part if total is None else total + part
            return total / np.float32(count * workers)

        norms = []
        for step in range(1, self.STEPS + 1):
            run.groups[0]["lr"] = job.learning_rate(step)
            norms.append(run.step_means(
                {name: mean(name, step) for name in job.SHAPES})["grad_norm"])
        shown = {
            name: reference.cast(crossed(weights, run.master[name].ravel()),
                                 dtype).reshape(shape)
            if is_coded[name] else run.weight(name)
            for name, (shape, dtype) in job.SHAPES.items()}
        return digest(shown), norms

    def widened(self, bits, name):
        dtype = job.SHAPES[name][1]
        return reference.widen(
            (bits, dtype) if dtype == "bfloat16" else bits).ravel()

    def test_threads_change_no_bit(self):  # I22, I25
        for exchange in ("exact", "delta4"):
            with self.subTest(exchange=exchange):
                one, three = (
                    self.run_job(2, 2, settings=["compute.threads=%d" % n],
                                 bucket_bytes=65536, exchange=exchange)
                    for n in (1, 3))
                self.assertEqual(one, three)
                if exchange == "exact":
                    self.assertEqual(one, self.reference(4))
                else:  # the control: coded bits are others
                    self.assertNotEqual(one, self.reference(4))

    def test_two_jobs_have_links_of_their_own(self):
        daemons = self.start_nodes(2)

        def worker(rank):
            name = "job-%d" % (rank // 2)
            # The second job's node 0 is the other daemon.
            mine = daemons if rank < 2 else daemons[::-1]
            coordinator = self.peers[rank // 2]
            with self.session(mine, rank % 2, 1,
                              {"w": np.zeros(5000, np.float32)}, job=name,
                              coordinator=coordinator) as s:
                for _ in s.steps(5):
                    s.grads["w"][...] = 1 + rank // 2
                    s.step()
                return float(s.params["w"][0])

        self.assertEqual(lab.run_ranks(4, worker), [-5, -5, -10, -10])

    def test_who_is_told_of_a_version_reads_it(self):  # T0 (d), I1, I2, I25
        tensors = {"w%d" % i: np.zeros(300001, np.float32) for i in range(4)}

        def run_job(exchange):
            daemons = self.start_nodes(2)

            def worker(rank):
                digests = []
                with self.session(daemons, rank, 2, tensors,
                                  bucket_bytes=2 << 20,
                                  exchange=exchange) as s:
                    for step in s.steps(6):
                        for name in tensors:
                            s.grads[name][...] = 1
                        s.step(wait=False)
                        for name in tensors:
                            s.wait(name)
                            digests.append(digest({name: s.params[name]}))
                            if exchange == "exact":
                                self.assertTrue(
                                    np.all(s.params[name] == -step))
                return digests

            return lab.run_ranks(4, worker)

        for exchange in ("exact", "zeropp"):
            with self.subTest(exchange=exchange):
                results = run_job(exchange)
                for result in results:
                    self.assertEqual(result, results[0])
                self.assertEqual(len(set(results[0])), len(results[0]))

    def test_status_and_metrics(self):
        daemons = self.start_nodes(2)
        tensors = {"w": np.zeros(100000, np.float32)}
        may_go_on = threading.Event()

        def worker(rank):
            with self.session(daemons, rank, 1, tensors) as s:
                for _ in range(2):  # the first is like any other (I21)
                    result = s.step()
                    # exact: the other owner's half up, our half down.
                    self.assertEqual(result.payload_bytes, 2 * 50000 * 4)
                    self.assertGreaterEqual(result.wire_bytes_sent,
                                            result.payload_bytes)
                    self.assertLess(result.wire_bytes_sent,
                                    1.005 * result.payload_bytes)
                if rank == 1:
                    may_go_on.wait(lab.PATIENCE)
                s.step(timeout=60)

        def watch():
            stats = {}

            def is_named():
                stats.update(daemons[0].control("job", "job") or {})
                waiting = stats.get("summary", {}).get("waiting_for", "")
                return "node 1: rank 1" in waiting

            try:
                lab.poll(is_named, "node 0 says that rank 1 is slow")
                self.assertIn("has not pushed", stats["summary"]["waiting_for"])
                self.assertEqual([n["state"] for n in stats["nodes"]],
                                 ["self", "ready"])
                # Gauges are set now and then, not by steps.
                lab.poll(lambda: re.search(
                    r'ballast_peers\{[^}]*state="ready"\} 1',
                    daemons[0].metrics()), "the link is counted")
                text = daemons[0].metrics()
                self.assertRegex(
                    text, r'ballast_exchange_wire_bytes_total\{[^}]*'
                    r'transport="ucx",direction="sent"\} [1-9]')
                self.assertRegex(
                    text, r'ballast_exchange_broadcast_bytes_total\{[^}]*'
                    r'direction="sent"\} 4[0-9]{5}')
                self.assertRegex(
                    text, r'ballast_exchange_duration_seconds_count\{[^}]*'
                    r'phase="reduce"\} [1-9]')
            finally:
                may_go_on.set()

        lab.run_ranks(3, lambda r: worker(r) if r < 2 else watch())


class RefusalTest(nodes.NodesCase):

    TENSORS = {} if lab.missing() else {"w": np.zeros(3, np.float32)}

    def test_without_a_peer_plane(self):
        daemon = self.start_daemon()  # listen.peer: off
        self.assertRaisesWith(
            ballast.InvalidArgument, "listen.peer",
            lambda: daemon.session(0, 2, self.TENSORS, local_rank=0,
                                   local_world_size=1, node_rank=0))

    def test_without_a_coordinator(self):
        daemons = self.start_nodes(2)
        self.assertRaisesWith(
            ballast.InvalidArgument, ["BALLAST_COORDINATOR",
                                      "node.coordinator"],
            lambda: self.session(daemons, 1, 1, self.TENSORS,
                                 coordinator=None))

    def test_nodes_that_differ(self):
        daemons = self.start_nodes(2)

        def worker(rank):
            size = 3 + rank
            open_it = lambda: self.session(
                daemons, rank, 1, {"w": np.zeros(size, np.float32)},
                timeout=5.0 if rank == 0 else lab.PATIENCE)
            if rank == 0:
                self.assertRaisesWith(ballast.DeadlineExceeded, "node 1",
                                      open_it)
            else:
                self.assertRaisesWith(ballast.InvalidArgument,
                                      ["tensors", "node 1"], open_it)

        lab.run_ranks(2, worker)
        self.assert_nothing_is_left(daemons)

    def test_nodes_whose_options_differ(self):  # both values, both nodes
        daemons = self.start_nodes(2, "jobs.join_timeout=3s")

        def worker(rank):
            hold = (None, 300.0)[rank]
            kind = (ballast.DeadlineExceeded, ballast.InvalidArgument)[rank]
            self.assertRaisesWith(
                kind, ["hold is 5m on node 1",
                       "10m (the daemon's jobs.hold) on node 0"],
                lambda: self.session(daemons, rank, 1, self.TENSORS,
                                     hold=hold))

        lab.run_ranks(2, worker)
        self.assert_nothing_is_left(daemons)

    def test_two_nodes_with_one_rank(self):
        daemons = self.start_nodes(3)

        # Daemons 1 and 2 are both told that they are node 1.
        errors = [None, None]
        first = threading.Thread(
            target=lambda: errors.__setitem__(0, self.try_open(
                daemons, 1, timeout=10.0)), daemon=True)
        first.start()
        lab.poll(lambda: daemons[1].memfds() > 0, "node 1 is there")
        errors[1] = self.try_open(daemons, 2, timeout=10.0)
        first.join(lab.PATIENCE)
        self.assertTrue(any(isinstance(e, ballast.AlreadyExists) and
                            "two nodes" in str(e) for e in errors), errors)

    def try_open(self, daemons, index, timeout):
        """Node 1 of 3 at daemon `index`; how that fails."""
        try:
            daemons[index].session(
                1, 3, self.TENSORS, local_rank=0, local_world_size=1,
                node_rank=1, coordinator=self.coordinator, timeout=timeout)
        except ballast.Error as error:
            return error
        return None

    def test_a_node_that_never_comes(self):  # I23
        daemons = self.start_nodes(3, "jobs.join_timeout=2s")
        sessions = lambda rank: self.session(daemons, rank, 1, self.TENSORS)

        def worker(rank):
            self.assertRaisesWith(ballast.DeadlineExceeded,
                                  ["2 of 3 ha", "not come"],
                                  lambda: sessions(rank))

        lab.run_ranks(2, worker)
        self.assert_nothing_is_left(daemons)

    def test_a_coordinator_that_is_not_there(self):  # I23
        daemons = self.start_nodes(2)
        nowhere = "127.0.0.1:%d" % launch.free_port()
        self.assertRaisesWith(
            ballast.DeadlineExceeded, ["node 0 at " + nowhere],
            lambda: self.session(daemons, 1, 1, self.TENSORS,
                                 coordinator=nowhere, timeout=3.0))


class CloseTest(nodes.NodesCase):

    TENSORS = {} if lab.missing() else {"w": np.zeros(3, np.float32)}

    def test_a_rank_that_closes_early_is_told_to_all_nodes(self):  # I23
        daemons = self.start_nodes(2)
        may_step = threading.Event()
        stepped = threading.Barrier(4)
        told = threading.Barrier(3)
        may_leave = threading.Event()  # the job ends when one has left

        def worker(rank):
            s = self.session(daemons, rank, 2, self.TENSORS)
            s.step()
            stepped.wait(lab.PATIENCE)
            if rank == 3:
                s.close()
                return
            if rank == 1:  # only closes, and hears nothing
                told.wait(2 * lab.PATIENCE)
                s.close()
                may_leave.set()
                return
            may_step.wait(lab.PATIENCE)
            error = self.assertRaisesWith(
                ballast.FailedPrecondition,
                ["rank 3 has closed the job", "step 2 can never"],
                lambda: s.step(timeout=_BOUND))
            told.wait(2 * lab.PATIENCE)
            # The session has ended with it.
            self.assertRaisesWith(type(error), str(error), s.close)
            may_leave.wait(lab.PATIENCE)

        def watch():
            try:
                for node, expected in (
                        (0, "rank 3 has closed the job, rank 0"),
                        (1, "rank 3 has closed the job, rank 2")):
                    lab.poll(lambda: expected in
                             nodes.waiting_for(daemons[node]),
                             "node %d says who closed and who did not" % node)
            finally:
                may_step.set()

        lab.run_ranks(5, lambda r: worker(r) if r < 4 else watch())
        self.assert_nothing_is_left(daemons)

    def test_a_closed_node_says_whom_it_waits_for(self):  # I23
        daemons = self.start_nodes(2)
        may_close = threading.Event()

        def worker(rank):
            s = self.session(daemons, rank, 1, self.TENSORS)
            s.step()
            if rank == 0:
                may_close.wait(lab.PATIENCE)
            s.close()

        def watch():
            try:
                lab.poll(lambda: "node 0: rank 1 has closed the job, rank 0 "
                         "(pid" in nodes.waiting_for(daemons[1]),
                         "node 1 says that rank 0 has not closed")
            finally:
                may_close.set()

        lab.run_ranks(3, lambda r: worker(r) if r < 2 else watch())
        self.assert_nothing_is_left(daemons)


class DeathTest(nodes.NodesCase):

    TENSORS = {} if lab.missing() else {"w": np.zeros(300007, np.float32)}

    def during_steps(self, daemons, hit, victims=(1,)):
        """All ranks step until hit(); the errors of those that are not of
        the victims' nodes, by rank."""
        world = len(daemons)
        started = threading.Barrier(world + 1)
        errors = {}
        hit_at = []

        def worker(rank):
            s = self.session(daemons, rank, 1, self.TENSORS)
            s.step()
            started.wait(lab.PATIENCE)
            try:
                while True:
                    s.step(timeout=lab.PATIENCE)
            except ballast.Error as error:
                errors[rank] = error, time.monotonic()

        def strike(_):
            started.wait(lab.PATIENCE)
            hit_at.append(time.monotonic())
            hit()

        def run(rank):
            return worker(rank) if rank < world else strike(rank)

        threads = [threading.Thread(target=run, args=(r,), daemon=True)
                   for r in range(world + 1)]
        for thread in threads:
            thread.start()
        survivors = [r for r in range(world) if r not in victims]
        lab.poll(lambda: all(r in errors for r in survivors),
                 "all survivors have their errors")
        for rank in survivors:
            self.assertLess(errors[rank][1] - hit_at[0], _BOUND)
        return {r: errors[r][0] for r in survivors}

    def check_named(self, errors, name):
        for rank, error in errors.items():
            self.assertIsInstance(error, ballast.Unavailable, error)
            self.assertIn(name, str(error), "rank %d" % rank)

    def test_a_daemon_is_killed(self):  # I23, I28
        daemons = self.start_nodes(3)
        errors = self.during_steps(
            daemons, lambda: daemons[1].signal(signal.SIGKILL))
        self.check_named(errors, "node 1")
        self.assert_nothing_is_left([daemons[0], daemons[2]])

    def test_the_coordinator_is_killed(self):  # I23, I28
        daemons = self.start_nodes(3)
        errors = self.during_steps(
            daemons, lambda: daemons[0].signal(signal.SIGKILL), victims=(0,))
        self.check_named(errors, "node 0")
        self.assert_nothing_is_left(daemons[1:])

    def test_a_daemon_is_stopped(self):  # I23, I28
        daemons = self.start_nodes(2)
        self.addCleanup(daemons[1].signal, signal.SIGCONT)
        errors = self.during_steps(
            daemons, lambda: daemons[1].signal(signal.SIGSTOP))
        self.check_named(errors, "node 1")
        self.assert_nothing_is_left(daemons[:1])
        daemons[1].signal(signal.SIGCONT)
        self.assert_nothing_is_left(daemons[1:])

    def test_a_daemon_drains(self):
        daemons = self.start_nodes(2)
        errors = self.during_steps(
            daemons, lambda: daemons[1].signal(signal.SIGTERM))
        self.check_named(errors, "draining")
        self.assertEqual(daemons[1].wait(), 0, daemons[1].log())
        self.assert_nothing_is_left(daemons[:1])

    def test_a_worker_is_killed_and_not_replaced(self):  # I23, I28
        daemons = self.start_nodes(2, "jobs.hold=2s")
        worker = self.start_worker(daemons[1], _WORKER, self.coordinator,
                                   rank=1, world=2)
        with self.assertRaises(ballast.Unavailable) as caught:
            s = self.session(daemons, 0, 1, self.TENSORS)
            s.step()
            worker.expect("stepped")
            worker.kill()
            s.step(timeout=_BOUND)
        self.assertIn("rank 1", str(caught.exception))
        self.assert_nothing_is_left(daemons)

    def test_a_worker_is_stopped(self):  # I23: slow is not dead
        daemons = self.start_nodes(2)
        worker = self.start_worker(daemons[1], _WORKER, self.coordinator,
                                   rank=1, world=2)
        with self.session(daemons, 0, 1, self.TENSORS) as s:
            s.step()
            worker.expect("stepped")
            os.kill(worker.pid, signal.SIGSTOP)
            self.assertRaisesWith(
                ballast.DeadlineExceeded, ["rank 1", "step 2"],
                lambda: s.step(timeout=6.0))
            lab.poll(lambda: "node 1: rank 1 (pid %d) has not pushed"
                     % worker.pid in nodes.waiting_for(daemons[0]),
                     "status says who is stopped")
            lab.poll(lambda: "is stopped (SIGSTOP or a debugger): kill -CONT "
                     "%d" % worker.pid in nodes.waiting_for(daemons[0]),
                     "and why")
            os.kill(worker.pid, signal.SIGCONT)
            worker.process.stdin.write("go\n")
            worker.process.stdin.flush()
            self.assertEqual(s.step(timeout=_BOUND).step, 2)
        code, output = worker.finish()
        self.assertEqual(code, 0, output)


# Rank 1 on node 1: one step, and one more when it is told to.
_WORKER = """
import sys
import numpy as np
import ballast
s = ballast.Session(job="job", tensors={"w": np.zeros(300007, np.float32)},
                    rank=1, world_size=2, local_rank=0, local_world_size=1,
                    node_rank=1, coordinator=sys.argv[1], timeout=60,
                    optimizer={"name": "sgd", "lr": 1.0})
s.step()
print("stepped", flush=True)
sys.stdin.readline()
s.step()
s.close()
"""


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
