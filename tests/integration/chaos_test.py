"""SIGKILL to workers, daemons and keepers, at random moments and at failpoints,
SIGSTOP and cut cables, again and again during one training: each rank sees each
step once and in order, with the bits of a run that nobody disturbed, and
afterwards nothing is left (I18 to I20, I23, I25, I28).

BALLAST_CHAOS_KILLS: of each kind in a test (6); BALLAST_CHAOS_SEED: of what is
drawn (the time). What is drawn is repeated by a seed, the moment is not.
"""

import os
import subprocess
import sys
import time
import unittest

import footprint
import lab
import namespaces

if not lab.missing():
    import chaos
    import kept
    import nodes
    import storm

_KILLS = int(os.environ.get("BALLAST_CHAOS_KILLS", "6"))
_SEED = int(os.environ.get("BALLAST_CHAOS_SEED", time.time_ns() % 1_000_000))
# Steps from the moment of the word that it is the last one.
_MARGIN = 60

if lab.missing():
    sys.exit(unittest.main(verbosity=2))


class Case(nodes.NodesCase, kept.KeptCase):

    def setUp(self):
        super().setUp()
        self.shared = footprint.shared_memory()
        self.nursery, self.records = self.start_nursery()
        self.stop = os.path.join(self.records, "stop")

    def start_ranks(self, daemons, workers, coordinator="", **options):
        """`workers` of each daemon."""
        return chaos.Ranks(
            self, self.nursery, len(daemons) * workers,
            lambda rank, number: dict(
                options, address=daemons[rank // workers].address,
                workers=workers, coordinator=coordinator))

    def weather(self, ranks, kinds, homes=(), link=None, watch=None):
        """The storm over a job, to the job's end: its last step."""
        hits = storm.Storm(_SEED, ranks, homes, link)
        self.addCleanup(lambda: print("%d events: %s" % (
            len(hits.told), ", ".join(hits.told)), file=sys.stderr))
        hits.begin()
        hits.run(kinds)
        if watch is not None:
            watch(homes, hits.mind)
        last = ranks.step() + _MARGIN
        with open(self.stop + ".new", "w", encoding="ascii") as stream:
            stream.write(str(last))
        os.rename(self.stop + ".new", self.stop)

        def is_over():
            hits.mind()
            return ranks.is_over()

        lab.poll(is_over, "the job ends")
        print("seed %d: %s; %d steps, lives of the ranks: %s (%d before they "
              "began), deaths of the daemons: %s" % (
                  _SEED, kinds, last, [len(lives) for lives in ranks.lives],
                  ranks.refused, [home.deaths for home in homes]),
              file=sys.stderr)
        return last

    def check_bits(self, ranks, last, count, workers, exchange):
        """What ranks saw is what they see where nobody disturbs them."""
        seen = ranks.seen()
        daemons = self.start_nodes(count)
        calm = self.start_ranks(daemons, workers, self.coordinator, steps=last,
                                exchange=exchange)
        lab.poll(calm.is_over, "the undisturbed job ends", 5 * lab.PATIENCE)
        expected = calm.seen()
        self.assertEqual(len(expected), last)
        for step, what in seen.items():
            self.assertEqual(what, expected[step], "step %d" % step)
        self.assertEqual({tuple(lives[-1].lines("end")[0])
                          for lives in ranks.lives},
                         {(str(last), expected[last][0])})

    def check(self, exchange, kinds, workers=3, link=None, settings=(),
              watch=None):
        """`kinds`: of events, and how many of each; `settings`: of all
        daemons; `watch(homes, mind)` is called after the storm, before the
        job ends."""
        count = len(link.names) if link else 1
        homes = [chaos.Home(self, *storm.settings(link, node), *settings,
                            http=True, **storm.places(link, node))
                 for node in range(count)]
        daemons = [home.daemon for home in homes]
        coordinator = storm.coordinator(link)

        def one_job():
            ranks = self.start_ranks(daemons, workers, coordinator, steps=2,
                                     name="warm")
            lab.poll(ranks.is_over, "a small job ends")
            for home in homes:
                home.check_is_free()

        one_job()
        before = [home.holds() for home in homes]
        ranks = self.start_ranks(daemons, workers, coordinator, stop=self.stop,
                                 exchange=exchange)
        last = self.weather(ranks, kinds, homes, link, watch)
        self.check_bits(ranks, last, count, workers, exchange)
        self.assertGreaterEqual(sum(home.deaths for home in homes),
                                kinds.get("daemon", 0))
        if not {"worker", "two_workers"} & set(kinds):
            # Not even one that had not begun: see Ranks.mind.
            self.assertEqual({len(lives) for lives in ranks.lives}, {1})
        # What is held after one more job is what was held after the first.
        one_job()
        for home, then in zip(homes, before):
            home.check_holds(then)
        self.assertEqual(footprint.shared_memory(), self.shared)


class ChaosTest(Case):

    def test_workers(self):
        self.check("zeropp", {"worker": _KILLS, "two_workers": _KILLS // 6})

    def test_daemons_and_keepers(self):
        self.check("delta4", {"daemon": _KILLS, "keeper": 1 + _KILLS // 10})

    def test_all_of_them(self):
        self.check("exact", {"worker": _KILLS, "daemon": _KILLS,
                             "keeper": 1 + _KILLS // 10,
                             "stopped_worker": 1, "stopped_daemon": 1})

    def test_workers_of_two_nodes(self):
        """Without keepers, and where a lost link ends the job."""
        daemons = self.start_nodes(2)
        ranks = self.start_ranks(daemons, 2, self.coordinator, stop=self.stop,
                                 exchange="delta4")
        last = self.weather(ranks, {"worker": _KILLS,
                                    "two_workers": _KILLS // 6})
        self.assert_nothing_is_left(daemons)
        self.check_bits(ranks, last, 2, 2, "delta4")


@unittest.skipIf(namespaces.missing(), namespaces.missing())
class CableTest(Case):
    """Nodes in network namespaces."""

    def check_nodes(self, exchange, count, workers, settings=(), watch=None,
                    **kinds):
        # After all other cleanups.
        self.addCleanup(lambda: self.assertEqual(namespaces.left(), []))
        link = namespaces.Link(count)
        self.addCleanup(link.remove)
        few = 1 + _KILLS // 10
        self.check(exchange, dict(
            {"daemon": _KILLS // 2, "all_daemons": few, "keeper": few,
             "stopped_worker": few, "stopped_daemon": few, "lost_daemon": few,
             "short_cut": few, "long_cut": few}, **kinds), workers, link,
                   settings, watch)

    def test_two_nodes(self):
        self.check_nodes("exact", 2, 2, worker=_KILLS // 2)

    def test_three_nodes(self):
        self.check_nodes("zeropp", 3, 1, worker=_KILLS // 2)

    def test_two_nodes_whose_workers_live(self):
        self.check_nodes("delta4", 2, 2)

    def test_two_nodes_that_keep_copies(self):
        """Of every few steps, in memory and in files: one of each is whole
        after all that, and the files of it are as they should be."""
        directory = os.path.join(self.records, "snapshots")
        os.mkdir(directory)

        def copies(homes, mind):
            def is_whole():
                mind()
                told = homes[0].daemon.control("job", "job") or {}
                return (told.get("replicas", {}).get("made", 0) > 0
                        and told.get("snapshots", {}).get("saved", 0) > 0)

            lab.poll(is_whole, "a replica and a snapshot are whole")

        self.check_nodes(
            "zeropp", 2, 1, worker=_KILLS // 2, watch=copies,
            settings=["snapshots.directory=" + directory,
                      "snapshots.every_steps=5", "snapshots.keep=2",
                      "replicas.every_steps=3"])
        saved = [entry for entry in os.listdir(os.path.join(directory, "job"))
                 if not entry.startswith(".")]
        self.assertTrue(saved)
        for name in saved:
            subprocess.run([os.environ["BALLASTCTL"], "checkpoint", "verify",
                            os.path.join(directory, "job", name)], check=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
