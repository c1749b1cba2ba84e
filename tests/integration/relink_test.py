"""Jobs of several nodes whose daemons are killed and started again, node 0's
too, or whose cable is cut for long: all wait, meet again and go on; workers
only see a pause, and no bit changes (I20, I23)."""

import random
import signal
import sys
import threading
import time
import unittest

import kept
import lab
import namespaces
import nodes

if not lab.missing():
    import numpy as np
    import ballast

# One rank per node of the reference job; its last line is a digest of what it
# ends with.
_WORKER = """
import hashlib, sys
import ballast, job
node, world, coordinator, steps, pause, exchange = sys.argv[1:]
s = ballast.Session(job="job", tensors=job.initial(), bucket_bytes=8192,
                    rank=int(node), world_size=int(world), local_rank=0,
                    local_world_size=1, node_rank=int(node),
                    coordinator=coordinator, timeout=120, exchange=exchange,
                    optimizer=dict(name="adamw", lr=0.01, betas=(0.9, 0.95),
                                   eps=1e-8, weight_decay=0.1),
                    gradient_clipping=1.0)
errors = []
for step in s.steps(int(steps)):
    job.fill(s, step)
    s.param_groups[0]["lr"] = job.learning_rate(step)
    s.push("head")
    job.look(s, float(pause))
    result = s.step(cursor=b"after %d" % step)
    errors.append((result.grad_norm, result.relative_error))
    print("step", step, flush=True)
assert s.cursor == b"after %s" % steps.encode(), s.cursor
digest = hashlib.sha256(job.look(s))
digest.update(repr((result.step, errors, result.lr)).encode())
s.close()
print("digest", digest.hexdigest(), flush=True)
"""


class Case(kept.KeptCase, nodes.NodesCase):

    def start_nodes_kept(self, count, *overrides):
        daemons = self.start_nodes(count, "transport.relink_timeout=60s",
                                   *overrides)
        self.keepers = []
        for daemon in daemons:
            keeper = kept.Keeper(daemon.directory)
            self.addCleanup(keeper.end)
            self.keepers.append(keeper)
            daemon.signal(signal.SIGTERM)
            daemon.wait()
            daemon.command += ["--set", "keeper.socket=" + keeper.socket]
            daemon.start()
        return daemons

    def start_job(self, daemons, steps, pause=0.0, exchange="exact"):
        return [self.start_worker(daemon, _WORKER, node, len(daemons),
                                  self.coordinator, steps, pause, exchange)
                for node, daemon in enumerate(daemons)]

    def undisturbed(self, count, steps, exchange):
        return self.digest_of(
            self.start_job(self.start_nodes(count), steps, exchange=exchange))


class RelinkTest(Case):

    def check_restarts(self, count, exchange, times, steps=60):
        """Daemons of any node are killed again and again during a run."""
        expected = self.undisturbed(count, steps, exchange)
        daemons = self.start_nodes_kept(count)
        workers = self.start_job(daemons, steps, 0.02, exchange)
        pids = [worker.pid for worker in workers]
        for worker in workers:
            worker.expect("step 1")
        generator = random.Random("%s %d" % (exchange, count))
        hit = []
        while len(hit) < times and all(
                w.process.poll() is None for w in workers):
            time.sleep(generator.uniform(0.0, 0.4))
            # The first ones are node 0 and another; sometimes two at once.
            victims = generator.sample(range(count),
                                       1 + (generator.random() < 0.3))
            victims = [len(hit)] if len(hit) < 2 else victims
            for node in victims:
                daemons[node].signal(signal.SIGKILL)
            for node in victims:
                self.assertEqual(daemons[node].wait(), 137)
                daemons[node].start()
            hit += victims
        print("killed: %s" % hit, file=sys.stderr)
        self.assertEqual(self.digest_of(workers), expected)
        self.assertGreater(len(hit), times // 2)
        self.assertEqual([worker.pid for worker in workers], pids)
        self.assert_nothing_is_left(daemons)  # I28
        for keeper in self.keepers:
            lab.poll(lambda k=keeper: k.memfds() == 0,
                     "the keeper's memory is freed")

    def test_two_nodes(self):
        self.check_restarts(2, "exact", 8)

    def test_three_nodes_with_zeropp(self):
        self.check_restarts(3, "zeropp", 8)

    def test_two_nodes_with_delta4(self):
        self.check_restarts(2, "delta4", 6)

    def test_weights_that_are_not_resident(self):
        self.check_restarts(2, "exact secondary_partition=none", 8)

    def test_encoded_weights_that_are_not_resident(self):
        self.check_restarts(3, "zeropp secondary_partition=none", 6)

    def test_workers_inside_gather(self):
        """Their daemons die, one or both: what they hold stays, what they wait
        for comes from the next ones, and so it goes on."""
        daemons = self.start_nodes_kept(2)
        initial = {"held": np.arange(30000, dtype=np.float32),
                   "asked": np.arange(50000, dtype=np.float32)}
        victims = {1: [1], 2: [0, 1]}  # by step
        gathering = {step: threading.Barrier(3) for step in victims}
        dead = {step: threading.Event() for step in victims}

        def worker(rank):
            with self.session(daemons, rank, 1, initial,
                              optimizer={"name": "sgd", "lr": 1.0},
                              exchange="exact secondary_partition=none",
                              bucket_bytes=65536) as s:
                for step in s.steps(2):
                    s.gather(["held"])
                    held = s.params["held"]
                    bits = held.tobytes()
                    gathering[step].wait(lab.PATIENCE)
                    self.assertTrue(dead[step].wait(lab.PATIENCE))
                    self.assertEqual(held.tobytes(), bits)
                    s.gather(["asked"], timeout=lab.PATIENCE)
                    self.assertEqual(held.tobytes(), bits)
                    self.assertBitsEqual(
                        s.params["asked"], initial["asked"] - (step - 1))
                    s.release(["held", "asked"])
                    for name in s.grads:
                        s.grads[name][...] = 1
                    s.step(timeout=lab.PATIENCE)

        ranks = lab.in_background(lambda: lab.run_ranks(2, worker))
        for step, killed in victims.items():
            gathering[step].wait(lab.PATIENCE)
            for node in killed:
                daemons[node].signal(signal.SIGKILL)
                daemons[node].wait()
            dead[step].set()
            # They ask, and nobody is there to answer.
            time.sleep(0.5)
            for node in killed:
                daemons[node].start()
        ranks()
        self.assert_nothing_is_left(daemons)

    def test_an_upgrade(self):
        """SIGTERM: the daemon ends at its ease, and the next one goes on."""
        expected = self.undisturbed(2, 30, "exact")
        daemons = self.start_nodes_kept(2)
        # A daemon that drains lets steps go on until it rests.
        workers = self.start_job(daemons, 30, 0.2)
        for daemon in daemons:
            workers[0].expect("step")
            daemon.signal(signal.SIGTERM)
            self.assertEqual(daemon.wait(), 0)
            daemon.start()
        self.assertEqual(self.digest_of(workers), expected)

    def test_status_and_metrics_say_who_is_away(self):
        expected = self.undisturbed(2, 20, "exact")
        daemons = self.start_nodes_kept(2)
        # Longer than what looks at the links takes to look again.
        workers = self.start_job(daemons, 20, 0.1)
        workers[0].expect("step 2")
        daemons[1].signal(signal.SIGKILL)
        daemons[1].wait()
        lab.poll(lambda: "node 1 of 2 has not come" in
                 nodes.waiting_for(daemons[0]), "status says who is away")
        self.assertIn("have lost one another", nodes.waiting_for(daemons[0]))
        self.assertIn('ballast_job_peers_absent{job_id="job"} 1',
                      daemons[0].metrics())
        daemons[1].start()
        self.assertEqual(self.digest_of(workers), expected)
        self.assertIn("nodes linked again", daemons[0].log())

    def test_who_comes_without_its_memory_is_lost(self):  # I23
        """The keeper has died with its daemon: the job ends, by name."""
        daemons = self.start_nodes_kept(2)
        workers = self.start_job(daemons, 1000, 0.02)
        workers[0].expect("step 2")
        daemons[1].signal(signal.SIGKILL)
        daemons[1].wait()
        self.keepers[1].end()
        workers[1].kill()
        self.keepers[1] = kept.Keeper(daemons[1].directory)
        self.addCleanup(self.keepers[1].end)
        daemons[1].start()
        again = self.start_worker(daemons[1], _WORKER, 1, 2, self.coordinator,
                                  1000, 0.02, "exact")
        code, output = workers[0].finish()
        self.assertNotEqual(code, 0)
        self.assertIn("node 1", output)
        self.assertIn("without its part of the job's state", output)
        again.kill()

    def test_a_node_that_stays_away(self):  # I23
        daemons = self.start_nodes_kept(2, "transport.relink_timeout=2s")
        workers = self.start_job(daemons, 1000, 0.02)
        workers[0].expect("step 2")
        daemons[1].signal(signal.SIGKILL)
        daemons[1].wait()
        code, output = workers[0].finish()
        self.assertNotEqual(code, 0)
        self.assertIn("node 1", output)
        self.assertIn("did not meet again within transport.relink_timeout = 2s",
                      output)
        self.assert_nothing_is_left(daemons[:1])


@unittest.skipIf(namespaces.missing(), namespaces.missing())
class CutTest(lab.TestCase):

    def test_a_cable_that_is_cut_for_long(self):
        """Nobody dies and nothing is kept: both wait, and go on."""
        link = namespaces.Link()
        self.addCleanup(link.remove)
        daemons = [self.start_daemon(
            "listen.peer=%s:7470" % link.addresses[node],
            "node.name=host-%d" % node, "transport.peer_timeout=2s",
            "transport.connect_timeout=5s", "transport.relink_timeout=60s",
            "transport.ucx_devices=" + link.devices[node],
            wrap=lambda command, n=node: link.inside(n, command))
                   for node in range(2)]
        tensors = {"w": np.zeros(300007, np.float32)}
        is_cut = threading.Event()

        def worker(rank):
            with daemons[rank].session(
                    rank, 2, tensors, local_rank=0, local_world_size=1,
                    node_rank=rank,
                    coordinator=link.addresses[0] + ":7470") as s:
                for step in s.steps(12):
                    s.grads["w"][...] = step * (rank + 1)
                    s.step(timeout=lab.PATIENCE)
                    if step in (4, 8) and rank == 0:
                        link.cut(step // 8)
                        is_cut.set()
                return float(s.params["w"][0])

        def mend():
            for _ in range(2):
                is_cut.wait(lab.PATIENCE)
                is_cut.clear()
                lab.poll(lambda: "have lost one another" in
                         nodes.waiting_for(daemons[0]), "status says so")
                link.mend()

        join = lab.in_background(mend)
        results = lab.run_ranks(2, worker)
        join()
        expected = np.float32(0)
        for step in range(1, 13):
            expected -= np.float32(step * 1.5)
        self.assertEqual(results, [float(expected)] * 2)
        for daemon in daemons:
            lab.poll(lambda d=daemon: d.memfds() == 0, "its memory is freed")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
