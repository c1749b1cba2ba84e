"""Daemons that die or are replaced before a job has begun: nothing of it is
kept, and its workers open it anew, whoever of them had come (I20, I23). No
process but the daemon's ends, and no bit changes."""

import os
import signal
import sys
import unittest

import kept
import lab
import nodes

if not lab.missing():
    import chaos

# One rank of the reference job, or of one with a large tensor: argv is its
# number of ranks per node, the coordinator, and how many elements to add. Its
# last line is a digest of what it ends with.
_WORKER = """
import hashlib, os, sys
import numpy as np
import ballast, job
workers, coordinator, large = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
rank = int(os.environ["RANK"])
tensors = job.initial()
if large:
    tensors = {"w": np.arange(large, dtype=np.float32)}
s = ballast.Session(job="job", tensors=tensors, bucket_bytes=1 << 20,
                    local_rank=rank % workers, local_world_size=workers,
                    node_rank=rank // workers, coordinator=coordinator,
                    timeout=100, gradient_clipping=1.0,
                    optimizer=dict(name="adamw", lr=0.01, betas=(0.9, 0.95),
                                   eps=1e-8, weight_decay=0.1))
assert not s.resumed
for step in s.steps(3):
    if large:
        s.grads["w"][...] = step * (1 + rank)
    else:
        job.fill(s, step)
    result = s.step()
digest = hashlib.sha256()
for name in sorted(s.params):
    digest.update(s.params[name].tobytes())
digest.update(repr((result.step, result.grad_norm)).encode())
s.close()
print("digest", digest.hexdigest(), flush=True)
"""

_NEWS = "looking for it and opening anew"
_LARGE = 6_000_000  # its bytes do not fit into what lies between two daemons


class Case(kept.KeptCase):

    def rank(self, daemon, rank, world, workers=None, coordinator="", large=0):
        return self.start_worker(daemon, _WORKER, workers or world, coordinator,
                                 large, rank=rank, world=world)

    def check_ends(self, ranks, told):
        """Their digest. Which of them lost a session, each once and for all
        its losses, is `told`; None: any."""
        digests = set()
        for number, worker in enumerate(ranks):
            code, output = worker.finish()
            self.assertEqual(code, 0, output)
            digests.add(output.split("digest ")[1].split()[0])
            losses = output.count(_NEWS)
            if told is None:
                self.assertLessEqual(losses, 1, output)
            else:
                self.assertEqual(losses, int(number in told), output)
        self.assertEqual(len(digests), 1)
        return digests.pop()

    def undisturbed(self, world):
        daemon = self.start_daemon()
        return self.check_ends(
            [self.rank(daemon, rank, world) for rank in range(world)], told=())


class GatheringTest(Case):

    def check_replaced(self, daemon, number):
        """While the first of two ranks waits for the other."""
        first = self.rank(daemon, 0, 2)
        lab.poll(lambda: "worker attached" in daemon.log(), "rank 0 has come")
        daemon.signal(number)
        self.assertEqual(daemon.wait(),
                         0 if number == signal.SIGTERM else 128 + number)
        # Long enough to look for the daemon, and find none.
        first.expect(_NEWS)
        self.assertIsNone(first.process.poll())
        daemon.start()
        second = self.rank(daemon, 1, 2)
        return self.check_ends([first, second], told=())

    def test_killed(self):
        expected = self.undisturbed(2)
        self.assertEqual(
            self.check_replaced(self.start_daemon(), signal.SIGKILL), expected)

    def test_drained(self):
        expected = self.undisturbed(2)
        self.assertEqual(
            self.check_replaced(self.start_daemon(), signal.SIGTERM), expected)

    def test_a_keeper_holds_nothing_of_it(self):
        """Nor its connections: workers are not told to wait for a job that
        nobody has."""
        expected = self.undisturbed(2)
        for number in (signal.SIGKILL, signal.SIGTERM):
            with self.subTest(number):
                daemon, keeper = self.start_kept()
                first = self.rank(daemon, 0, 2)
                lab.poll(lambda d=daemon: "worker attached" in d.log(),
                         "rank 0 has come")
                daemon.signal(number)
                daemon.wait()
                daemon.start()
                second = self.rank(daemon, 1, 2)
                self.assertEqual(self.check_ends([first, second], told=(0,)),
                                 expected)
                lab.poll(lambda k=keeper: k.memfds() == 0,
                         "the keeper's memory is freed")  # I28

    def test_killed_again_and_again(self):
        expected = self.undisturbed(3)
        daemon = self.start_daemon()
        ranks = []
        for rank in range(2):
            ranks.append(self.rank(daemon, rank, 3))
            lab.poll(lambda r=rank: daemon.log().count("worker attached") > r,
                     "they have come")
            daemon.signal(signal.SIGKILL)
            daemon.wait()
            daemon.start()
        ranks.append(self.rank(daemon, 2, 3))
        self.assertEqual(self.check_ends(ranks, told=(0, 1)), expected)

    def test_a_daemon_that_stays_away(self):  # I23; the control
        daemon = self.start_daemon()

        def lose():
            lab.poll(lambda: "worker attached" in daemon.log(), "it has come")
            daemon.signal(signal.SIGKILL)

        join = lab.in_background(lose)
        import ballast
        import job
        self.assertRaisesWith(
            ballast.Unavailable,
            ["the daemon at " + daemon.address, "while the session was opening",
             "open timeout of 10s (open_timeout; in Python timeout=)",
             "no daemon at " + daemon.address + ": tried ",
             "start ballastd there"],
            lambda: daemon.session(0, 2, job.initial(), timeout=10.0))
        join()

    def test_what_the_next_daemon_refuses_is_final(self):
        daemon = self.start_daemon()
        worker = self.rank(daemon, 0, 2)
        lab.poll(lambda: "worker attached" in daemon.log(), "it has come")
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        daemon.command += ["--set", "limits.max_tensors=1"]
        daemon.start()
        code, output = worker.finish()
        self.assertNotEqual(code, 0)
        self.assertIn("limits.max_tensors", output)


class MomentsTest(Case):

    def test_killed_at_any_moment_of_the_opening(self):
        """By its failpoints, as the first and as the last rank passes them;
        the next daemon begins the job, or goes on with it."""
        expected = self.undisturbed(2)
        moments = ["%s=kill@%d" % (name, passage) for name in (
            "session.slot_taken", "session.segments_sent", "session.attached",
            "session.begin") for passage in (1, 2)]
        for moment in moments + ["daemon.weights_there=kill@1"]:
            with self.subTest(moment):
                home = chaos.Home(self)
                home.end()
                self.assertTrue(home.start(moment))
                ranks = [self.rank(home.daemon, rank, 2) for rank in range(2)]
                lab.poll(home.mind, "the daemon has died and is replaced")
                self.assertEqual(self.check_ends(ranks, told=None), expected)
                self.assertEqual(home.deaths, 1)
                home.check_is_free()


class NodesTest(Case, nodes.NodesCase):

    def ranks(self, daemons, count):
        return [self.rank(daemons[rank], rank, count, 1, self.coordinator,
                          _LARGE) for rank in range(count)]

    def start_over(self, daemon, number=signal.SIGKILL):
        daemon.signal(number)
        daemon.wait()
        daemon.start()

    def test_killed_as_the_job_begins(self):
        """As a node sends the initial weights, has them, or has put down that
        the job has begun: the other one, whose daemon lives, may be as far or
        not, hears that the job has lost a node, and comes again."""
        for patience in ("0s", "20s"):
            daemons = self.start_nodes(
                2, "transport.relink_timeout=" + patience)
            self.check_killed_as_it_begins(daemons)

    def check_killed_as_it_begins(self, daemons):
        expected = self.check_ends(self.ranks(daemons, 2), told=())
        for node, moment in ((0, "weights_leave"), (1, "weights_there"),
                             (0, "begun"), (1, "begun")):
            with self.subTest(moment, node=node):
                daemon = daemons[node]
                plain = daemon.command
                daemon.command = [
                    chaos.PROGRAM if word == os.environ["BALLASTD"] else word
                    for word in plain] + ["--failpoints",
                                          "daemon.%s=kill@1" % moment]
                self.start_over(daemon)
                ranks = self.ranks(daemons, 2)
                self.assertEqual(daemon.wait(), 128 + signal.SIGKILL)
                daemon.command = plain
                daemon.start()
                self.assertEqual(self.check_ends(ranks, told=(0, 1)), expected)
        self.assert_nothing_is_left(daemons)  # I28

    def test_killed_while_nodes_gather(self):
        """Either node's, while the third has not come."""
        daemons = self.start_nodes(3)
        expected = self.check_ends(self.ranks(daemons, 3), told=())
        ranks = [self.rank(daemons[rank], rank, 3, 1, self.coordinator, _LARGE)
                 for rank in range(2)]
        for node in (0, 1):
            lab.poll(lambda: "node 2" in nodes.waiting_for(daemons[1]),
                     "two nodes have met")
            self.start_over(daemons[node])
        ranks.append(self.rank(daemons[2], 2, 3, 1, self.coordinator, _LARGE))
        self.assertEqual(self.check_ends(ranks, told=(0, 1)), expected)
        self.assert_nothing_is_left(daemons)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
