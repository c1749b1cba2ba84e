"""SIGKILL to workers, daemons and keepers, at random moments and at failpoints,
again and again during one training: each rank sees each step once and in
order, with the bits of a run that nobody disturbed, and afterwards nothing is
left (I18 to I20, I25, I28).

BALLAST_CHAOS_KILLS: of each kind in a test (6); BALLAST_CHAOS_SEED: of what is
drawn (the time). What is drawn is repeated by a seed, the moment is not.
"""

import os
import random
import sys
import time
import unittest

import footprint
import lab

if not lab.missing():
    import chaos
    import kept
    import nodes

_KILLS = int(os.environ.get("BALLAST_CHAOS_KILLS", "6"))
_SEED = int(os.environ.get("BALLAST_CHAOS_SEED", time.time_ns() % 1_000_000))
# Steps from the moment of the word that it is the last one.
_MARGIN = 60

if lab.missing():
    sys.exit(unittest.main(verbosity=2))


def wait(seconds, mind=lambda: None):
    end = time.monotonic() + seconds
    while True:
        mind()
        if time.monotonic() >= end:
            return
        time.sleep(0.003)


class Storm:
    """What hits one job, event by event."""

    def __init__(self, case, ranks, home=None):
        self.case, self.ranks, self.home = case, ranks, home
        self.random = random.Random(_SEED)
        self.may_die = False  # at a failpoint

    def mind(self):
        if self.home is not None and self.home.mind(self.failpoints):
            # It may die in the next life too.
            self.may_die = "--failpoints" in self.home.daemon.command
        self.ranks.mind()

    def failpoints(self):
        """None, or one of those that a daemon comes to again and again."""
        if self.random.random() < 0.5:
            return ""
        return "%s=kill@%d" % (
            self.random.choice(chaos.names("FAILPOINT")),
            self.random.choice((1, 2, 3, 5, 8, 13, 40, 100)))

    def begin(self):
        lab.poll(lambda: self.ranks.step() >= 2, "the job runs")

    def worker(self):
        self.ranks.life(self.random.randrange(len(self.ranks.lives))).kill()

    def two_workers(self):
        for rank in self.random.sample(range(len(self.ranks.lives)), 2):
            self.ranks.life(rank).kill()

    def daemon(self):
        """By itself, if it is to; else from outside."""
        deaths = self.home.deaths
        if self.may_die:
            wait(0.3, self.mind)
        if self.home.deaths == deaths and self.home.daemon.child.poll() is None:
            self.home.kill()

    def keeper(self):
        """Never while the daemon may die too."""
        while self.may_die:
            self.daemon()
            self.mind()
        self.home.replace_keeper()

    def run(self, events):
        """Each after a moment in which all may happen."""
        self.random.shuffle(events)
        for event in events:
            wait(self.random.uniform(0.0, 0.12), self.mind)
            event()
            if self.random.random() < 0.5:
                wait(self.random.uniform(0.0, 0.05))  # nobody comes yet
        while self.may_die:
            self.daemon()
            self.mind()


class ChaosTest(kept.KeptCase):

    def setUp(self):
        super().setUp()
        self.shared = footprint.shared_memory()
        self.nursery, self.records = self.start_nursery()
        self.stop = os.path.join(self.records, "stop")

    def finish(self, storm, ranks):
        """Lets the job come to its end; its last step."""
        last = ranks.step() + _MARGIN
        with open(self.stop + ".new", "w", encoding="ascii") as stream:
            stream.write(str(last))
        os.rename(self.stop + ".new", self.stop)

        def is_over():
            storm.mind()
            return ranks.is_over()

        lab.poll(is_over, "the job ends")
        return last

    def undisturbed(self, steps, **options):
        daemon = self.start_daemon()
        ranks = chaos.Ranks(self, self.nursery, options.pop("world"),
                            lambda rank, number: dict(
                                options, address=daemon.address, steps=steps))
        lab.poll(ranks.is_over, "the undisturbed job ends", 5 * lab.PATIENCE)
        return ranks.seen()

    def check_nothing_is_left(self, home, before):
        """What a daemon holds after one more job is what the first one held
        after its first."""
        self.one_job(home)
        for process, then in ((home.daemon, before[0]),
                              (home.keeper, before[1])):
            lab.poll(lambda p=process, t=then: p.footprint().fits(t),
                     "%s has more than %s" % (process.footprint(), then))
        self.assertEqual(footprint.files(home.daemon.directory), before[2])
        self.assertEqual(footprint.shared_memory(), self.shared)

    def one_job(self, home):
        ranks = chaos.Ranks(self, self.nursery, 3, lambda rank, number: {
            "address": home.daemon.address, "steps": 2, "name": "warm"})
        lab.poll(ranks.is_over, "a small job ends")
        lab.poll(lambda: home.daemon.memfds() == 0, "its memory is freed")
        lab.poll(lambda: home.keeper.memfds() == 0, "the keeper's too")

    def check(self, exchange, kinds):
        """`kinds`: of events, and how many of each."""
        home = chaos.Home(self, http=True)
        self.one_job(home)
        before = (home.daemon.footprint(), home.keeper.footprint(),
                  footprint.files(home.daemon.directory))
        ranks = chaos.Ranks(self, self.nursery, 3, lambda rank, number: {
            "address": home.daemon.address, "stop": self.stop,
            "exchange": exchange})
        storm = Storm(self, ranks, home)
        storm.begin()
        storm.run([getattr(storm, kind) for kind, count in kinds.items()
                   for _ in range(count)])
        last = self.finish(storm, ranks)
        lives = [len(lives) for lives in ranks.lives]
        print("seed %d, %s: %s; %d steps, %d lives of 3 ranks (%d before they "
              "began), %d deaths of the daemon" % (
                  _SEED, exchange, kinds, last, sum(lives), ranks.refused,
                  home.deaths), file=sys.stderr)
        seen = ranks.seen()
        expected = self.undisturbed(last, world=3, exchange=exchange)
        self.assertEqual(len(expected), last)
        for step, what in seen.items():
            self.assertEqual(what, expected[step], "step %d" % step)
        self.assertEqual({tuple(ranks.life(r).lines("end")[0])
                          for r in range(3)}, {(str(last), expected[last][0])})
        self.assertGreaterEqual(home.deaths, kinds.get("daemon", 0))
        if not {"worker", "two_workers"} & set(kinds):
            self.assertEqual(lives, [1, 1, 1])  # no survivor was restarted
        self.check_nothing_is_left(home, before)

    def test_workers(self):
        self.check("zeropp", {"worker": _KILLS, "two_workers": _KILLS // 6})

    def test_daemons_and_keepers(self):
        self.check("delta4", {"daemon": _KILLS, "keeper": 1 + _KILLS // 10})

    def test_all_of_them(self):
        self.check("exact", {"worker": _KILLS, "daemon": _KILLS,
                             "keeper": 1 + _KILLS // 10})


class NodesChaosTest(nodes.NodesCase, kept.KeptCase):
    """Workers of two nodes."""

    def setUp(self):
        super().setUp()
        self.nursery, records = self.start_nursery()
        self.stop = os.path.join(records, "stop")

    def start_ranks(self, exchange, **options):
        daemons = self.start_nodes(2)
        ranks = chaos.Ranks(self, self.nursery, 4, lambda rank, number: dict(
            options, address=daemons[rank // 2].address, workers=2,
            coordinator=self.coordinator, exchange=exchange))
        return daemons, ranks

    def check(self, exchange):
        daemons, ranks = self.start_ranks(exchange, stop=self.stop)
        storm = Storm(self, ranks)
        storm.begin()
        storm.run([storm.worker] * _KILLS + [storm.two_workers] * (_KILLS // 6))
        last = ChaosTest.finish(self, storm, ranks)
        seen = ranks.seen()
        print("seed %d, %s on two nodes: %d steps, %d lives of 4 ranks" % (
            _SEED, exchange, last, sum(map(len, ranks.lives))),
              file=sys.stderr)
        self.assert_nothing_is_left(daemons)
        _, calm = self.start_ranks(exchange, steps=last)
        lab.poll(calm.is_over, "the undisturbed job ends", 5 * lab.PATIENCE)
        expected = calm.seen()
        for step, what in seen.items():
            self.assertEqual(what, expected[step], "step %d" % step)

    def test_workers_with_delta4(self):
        self.check("delta4")


if __name__ == "__main__":
    unittest.main(verbosity=2)
