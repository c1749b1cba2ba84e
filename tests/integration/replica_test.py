"""Jobs that go on from what nodes hold in memory: a node is lost for good, or
the job comes back in another shape. No daemon has a snapshots.directory."""

import re
import signal
import threading
import unittest

import lab
import nodes

if not lab.missing():
    import ballast
    import job
    from ballast import launch

_ADAMW = {"name": "adamw", "lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8,
          "weight_decay": 0.1}


# A rank that is a process, and dies as one.
_RANK = """
import sys
import ballast, job
rank, world, coordinator = sys.argv[1:]
s = ballast.Session(job="job", tensors=job.initial(), bucket_bytes=8192,
                    rank=int(rank), world_size=int(world), local_rank=0,
                    local_world_size=1, node_rank=int(rank),
                    coordinator=coordinator, gradient_clipping=1.0,
                    optimizer=dict(name="adamw", lr=0.01, betas=(0.9, 0.95),
                                   eps=1e-8, weight_decay=0.1))
job.train(s, 100000)
"""


class ReplicaTest(nodes.NodesCase):

    def open(self, daemons, rank, workers, tensors=None):
        """Of a job on these daemons, the first of which is node 0."""
        first = daemons[0]
        return self.session(
            daemons, rank, workers, tensors or job.initial(),
            optimizer=_ADAMW, gradient_clipping=1.0, bucket_bytes=8192,
            coordinator=first.peer)

    def start(self, count, every_steps, *overrides):
        daemons = self.start_nodes(
            count, "replicas.every_steps=%d" % every_steps, *overrides)
        for daemon, peer in zip(daemons, self.peers):
            daemon.peer = peer
        return daemons

    def replicas(self, daemon):
        return (daemon.control("job", "job") or {}).get("replicas", {})

    def train_until_lost(self, daemons, workers, lost):
        """Trains; kills daemon `lost` once a replica is whole. Every rank ends
        with an error. The last step that anyone saw."""
        seen, errors = [0], {}

        def run(rank):
            try:
                with self.open(daemons, rank, workers) as session:
                    def note(step, _):
                        seen[0] = max(seen[0], step)
                    job.train(session, 100000, note)
            except ballast.Error as error:
                errors[rank] = error

        world = workers * len(daemons)
        threads = [threading.Thread(target=run, args=(rank,), daemon=True)
                   for rank in range(world)]
        for thread in threads:
            thread.start()
        lab.poll(lambda: self.replicas(daemons[0]).get("last_step", 0) >= 4,
                 "a replica is whole")
        daemons[lost].signal(signal.SIGKILL)
        lab.poll(lambda: len(errors) == world, "all ranks have their errors")
        return seen[0]

    def check_goes_on(self, daemons, workers, earlier_world, latest,
                      earliest=4, tensors=None):
        """Opens the job there, trains four steps and compares with a run that
        was resized at that step (I20)."""
        world = workers * len(daemons)
        barrier = threading.Barrier(world)

        def run(rank):
            with self.open(daemons, rank, workers, tensors) as session:
                self.assertTrue(session.resumed)
                first = session.open_step
                job.train(session, first + 3)
                weights = job.weights(session)
                barrier.wait(lab.PATIENCE)
                return first, weights

        results = lab.run_ranks(world, run)
        first = results[0][0]
        self.assertGreater(first, earliest)
        self.assertLessEqual(first, latest + 1)
        expected = job.Reference(earlier_world, _ADAMW, 1.0)
        for step in range(1, first + 4):
            if step == first:
                expected.world = world
            expected.step(step)
        for rank, (step, weights) in enumerate(results):
            self.assertEqual(step, first)
            for name, array in weights.items():
                self.assertBitsEqual(array, expected.weight(name),
                                     "rank %d %s" % (rank, name))
        self.assert_nothing_is_left(daemons)  # I28
        return first

    def test_a_lost_node_and_two_that_go_on(self):
        for lost in (1, 0):
            with self.subTest(lost=lost):
                daemons = self.start(3, 2)
                latest = self.train_until_lost(daemons, 1, lost)
                rest = [d for d in daemons if d is not daemons[lost]]
                self.check_goes_on(rest, 2, 3, latest)
                self.assertIn('from="replica of step', rest[1].log())
                self.assertIn("held by nodes 0 and 1", rest[0].log())

    def test_a_lost_node_and_its_replacement(self):
        daemons = self.start(3, 2)
        latest = self.train_until_lost(daemons, 1, 0)
        peer = "127.0.0.1:%d" % launch.free_port()
        new = self.start_daemon(
            "listen.peer=" + peer, "transport.ucx_devices=lo",
            "transport.peer_timeout=3s", "node.name=new",
            "replicas.every_steps=2")
        new.peer = peer
        # It is node 0, and knows nothing of the job before it has asked.
        self.check_goes_on([new, daemons[2], daemons[1]], 1, 3, latest)

    def test_what_a_lost_node_would_undo_is_told(self):
        """The lag: steps since the last replica that is whole, on all nodes."""
        daemons = self.start(2, 2)

        def lags():
            found = []
            for daemon in daemons:
                found += re.findall(r'^ballast_replica_lag_steps\{job_id="job"\} '
                                    r"(\d+)$", daemon.metrics(), re.MULTILINE)
            return [int(lag) for lag in found]

        barrier = threading.Barrier(2)

        def run(rank):
            with self.open(daemons, rank, 1) as session:
                for last, lag in ((1, 1), (2, 0), (3, 1), (4, 0)):
                    job.train(session, last)
                    barrier.wait(lab.PATIENCE)
                    lab.poll(lambda: lags() == [lag, lag],
                             "after step %d it is %d" % (last, lag))
                    barrier.wait(lab.PATIENCE)

        lab.run_ranks(2, run)

    def test_two_nodes_more_than_before(self):
        daemons = self.start(2, 2)
        latest = self.train_until_lost(daemons, 2, 1)
        more = self.start(2, 2)
        self.check_goes_on([more[0], daemons[0], more[1]], 1, 4, latest)

    def test_nodes_that_wait_for_a_lost_one_are_asked_for_more(self):
        """They still wait for it when their workers, which were ended, come
        again as a smaller job."""
        daemons = self.start(3, 2, "transport.relink_timeout=60s")
        ranks = [self.start_worker(daemon, _RANK, rank, 3, daemons[0].peer)
                 for rank, daemon in enumerate(daemons)]
        lab.poll(lambda: self.replicas(daemons[0]).get("last_step", 0) >= 4,
                 "a replica is whole")
        daemons[1].signal(signal.SIGKILL)
        for node in (0, 2):
            lab.poll(lambda d=daemons[node]: "have lost one another" in
                     nodes.waiting_for(d), "node %d waits" % node)
        latest = int(daemons[0].control("job", "job")["summary"]["open_step"])
        for rank in ranks:
            rank.kill()
        self.check_goes_on([daemons[2], daemons[0]], 2, 3, latest)
        self.assertIn('from="replica of step', daemons[0].log())

    def test_the_lesser_half_needs_the_operators_word(self):  # I19
        daemons = self.start(2, 2)
        latest = self.train_until_lost(daemons, 1, 0)
        join = lab.in_background(self.check_goes_on, daemons[1:], 2, 2, latest)
        lab.poll(lambda: "may not go on alone" in nodes.waiting_for(daemons[1]),
                 "it says what it waits for")
        self.assertIn("--adopt", nodes.waiting_for(daemons[1]))
        self.assertIsNone(daemons[1].control("job", "other", "--adopt"))
        self.assertEqual(daemons[1].control("job", "job", "--adopt"), {})
        join()
        self.assertIn("job adopted job=job", daemons[1].log())

    def test_a_planned_change_of_size_loses_no_step(self):
        for count, workers, to in ((2, 2, (1,)), (2, 1, (1, 0))):
            with self.subTest(to=to):
                daemons = self.start(count, 1000)

                def leave(rank, daemons=daemons, workers=workers):
                    session = self.open(daemons, rank, workers)
                    job.train(session, 5)
                    session.detach()

                lab.run_ranks(count * workers, leave)
                shapes = {name: (shape, dtype) for name, (shape, dtype)
                          in job.SHAPES.items()}
                first = self.check_goes_on(
                    [daemons[n] for n in to], 3, count * workers, 5,
                    earliest=5, tensors=shapes)
                self.assertEqual(first, 6)

    def test_a_job_that_runs_is_not_taken_for_one_that_left(self):
        daemons = self.start(2, 1000)
        opened, close = threading.Barrier(3), threading.Event()

        def run(rank):
            with self.open(daemons, rank, 1) as session:
                job.train(session, 2)
                opened.wait(lab.PATIENCE)
                close.wait(lab.PATIENCE)
                job.train(session, 3)

        joins = [lab.in_background(run, rank) for rank in range(2)]
        opened.wait(lab.PATIENCE)
        with self.assertRaises(ballast.InvalidArgument):
            self.open(daemons[:1], 0, 1)
        close.set()
        for join in joins:
            join()
        self.assert_nothing_is_left(daemons)


if __name__ == "__main__":
    unittest.main()
