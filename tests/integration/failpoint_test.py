"""A real daemon that dies at each of its failpoints (server/base/failpoint.h),
and once more while the next one takes over: no bit changes, nothing is left
(I19, I20, I28). More passages of each, in virtual time:
tests/sim/failpoint_test. And that a release has none."""

import os
import subprocess
import sys
import unittest

import lab

if not lab.missing():
    import chaos
    import kept

_STEPS = 8

# At which passage; by default the third. What is passed while a job begins is
# opening_test's.
_HITS = {
    "daemon.begun": 1,
    "daemon.forgetting": 2,
    "daemon.weights_there": 1,
    "engine.aborted": 1,
    "engine.publish": 53,
    "engine.published": 70,
    "ipc.keeper_tell": 22,
    "optimizer.chunk.open": 60,
    "optimizer.chunk.updated": 7,
    "session.pushed": 20,
    "session.slot_cleared": 1,
    "session.vacated": 1,
    "session.close_recorded": 1,
    "session.closed": 1,
    "snapshot.life_claimed": 1,
    "snapshot.old_moved": 1,
    "snapshot.pruning": 1,
}
# Which are passed only where something else has happened.
_AFTER = {
    "daemon.adopting": "engine.vote=kill@3",
    "daemon.restored": "engine.vote=kill@3",
    "daemon.taken_over": "engine.vote=kill@3",
    "optimizer.undo.restored": "optimizer.chunk.updated=kill@7",
    "relink.agreed": "engine.vote=kill@3",
    "relink.recorded": "engine.vote=kill@3",
}
# Jobs of one node that load nothing do not come to these.
_ELSEWHERE = {"collective.delta_computed", "collective.delta_written",
              "collective.raw_dropped", "daemon.load_finished",
              "daemon.unit_held", "daemon.unit_not_held",
              "daemon.weights_leave", "engine.loaded",
              "replica.fetched", "replica.placed", "replica.pruning"}


@unittest.skipIf(lab.missing(), lab.missing())
class ReleaseTest(unittest.TestCase):
    """T11: nothing of failpoints is in what is released."""

    def test_programs_have_no_failpoints(self):
        names = [name.encode() for name in chaos.names(
            "FAILPOINT", "FAILPOINT_STATUS", "SABOTAGED")]
        self.assertGreater(len(names), 30)
        names += [b"HitFailpoint", b"IsSabotaged", b"--failpoints"]
        for variable, is_release in (
                ("BALLASTD", True), ("BALLAST_KEEPER", True),
                ("BALLAST_LIBRARY", True), ("BALLASTCTL", True),
                ("BALLASTD_FAILPOINTS", False)):
            with open(os.environ[variable], "rb") as stream:
                program = stream.read()
            found = [name for name in names if name in program]
            self.assertEqual(found, [] if is_release else names, variable)

    def test_ballastd_knows_no_such_option(self):
        done = subprocess.run(
            [os.environ["BALLASTD"], "--failpoints", "x=kill",
             "--print-config"], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=lab.PATIENCE)
        self.assertEqual(done.returncode, 2, done.stdout)

    def test_what_is_malformed_is_refused(self):
        done = subprocess.run(
            [chaos.PROGRAM, "--failpoints", "x=explode"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=lab.PATIENCE)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("unknown action", done.stdout)


if lab.missing():
    sys.exit(unittest.main(verbosity=2))


class FailpointTest(kept.KeptCase):

    def run_job(self, failpoints, then=""):
        """A daemon that dies, and the next one: what all ranks see of each
        step, and how many deaths that were."""
        home = chaos.Home(self)
        store = os.path.join(home.daemon.directory, "snapshots")
        os.mkdir(store)
        home.use("snapshots.directory=" + store, "snapshots.every_steps=1",
                 "snapshots.keep=1")
        home.start(failpoints)

        def options(rank, number):
            is_first = rank == 1 and number == 0
            return {"address": home.daemon.address, "steps": _STEPS,
                    "disagree_at": 3 if is_first else 0,
                    "die_at": 5 if is_first else 0,
                    "save_at": [4, _STEPS] if rank == 0 else []}

        ranks = chaos.Ranks(self, self.nursery, 2, options)

        def is_over():
            if home.mind(lambda: then):
                return False
            ranks.mind()
            return ranks.is_over()

        def is_freed():
            home.mind()  # it may die freeing it
            return home.daemon.memfds() == 0 and home.keeper.memfds() == 0

        lab.poll(is_over, "the job ends")
        lab.poll(is_freed, "all memory is freed")
        snapshots = os.listdir(os.path.join(store, "job"))
        self.assertIn("last", snapshots)
        self.assertEqual([n for n in snapshots if n.startswith(".")],
                         [".life"])
        home.end()
        return ranks.seen(), home.deaths

    def test_a_death_at_any_of_them_changes_no_bit(self):
        self.nursery, _ = self.start_nursery()
        expected, deaths = self.run_job("")
        self.assertEqual((len(expected), deaths), (_STEPS, 0))
        for name in chaos.names("FAILPOINT", "FAILPOINT_STATUS"):
            with self.subTest(name):
                rule = "%s=kill@%d" % (name, _HITS.get(name, 3))
                first, then = rule, "daemon.taken_over=kill"
                if name in _AFTER:
                    first, then = _AFTER[name], "%s=kill" % name
                seen, deaths = self.run_job(first, then)
                self.assertEqual(seen, expected)
                self.assertEqual(deaths == 0, name in _ELSEWHERE)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
