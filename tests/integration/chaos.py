"""What kills, and what starts again: daemons that go on with their keeper's
jobs, and ranks whose places are taken over by others."""

import os
import signal
import time

import footprint
import kept
import lab
from ballast import launch

# Dies where --failpoints says; and where it can.
PROGRAM = os.environ.get("BALLASTD_FAILPOINTS", "")


def names(*macros):
    """The failpoints that the sources have, of these macros."""
    with open(os.environ["BALLAST_FAILPOINT_NAMES"],
              encoding="ascii") as stream:
        lines = [line.split() for line in stream]
    return sorted({name for macro, name in lines if macro in macros})


class Home:
    """A daemon that is started again whenever it has died, and its keeper."""

    def __init__(self, case, *overrides, **options):
        self.daemon, self.keeper = case.start_kept(*overrides, **options)
        self._case = case
        self._plain = self.daemon.command
        self._has_begun = True
        self.deaths = 0
        # Its device may be down: it does not start on one that is.
        self.is_unplugged = False

    def use(self, *overrides):
        """Ends the daemon; the next one has these settings too."""
        self.end()
        for override in overrides:
            self._plain = self._plain + ["--set", override]

    def end(self):
        self.daemon.signal(signal.SIGTERM)
        self._case.assertEqual(self.daemon.wait(), 0, self.daemon.log())

    def start(self, failpoints=""):
        """False if it died at once, at one of them, or cannot start."""
        daemon = self.daemon
        daemon.command = self._plain if not failpoints else [
            PROGRAM if word == os.environ["BALLASTD"] else word
            for word in self._plain] + ["--failpoints", failpoints]
        daemon.child = daemon.launcher.start_daemon(0, daemon.command)
        self._has_begun = True
        if launch.wait_for_daemon(daemon.address, lab.PATIENCE, daemon.child):
            return True
        if (self.is_unplugged and daemon.wait() == 1
                and "No such device" in daemon.log()):
            self._has_begun = False
            return False
        self.check_death()
        return False

    def check_death(self):
        """It has died, and of SIGKILL."""
        self.deaths += 1
        self._has_begun = False
        self._case.assertEqual(self.daemon.wait(), 128 + signal.SIGKILL,
                               self.daemon.log())

    def mind(self, failpoints=lambda: ""):
        """Starts it again if it is dead, with the failpoints of that moment,
        or tries to; True if it was."""
        if not self.is_dead():
            return False
        if self._has_begun:
            self.check_death()
        if not self.start(failpoints()):
            self._case.assertTrue(self.start() or self.is_unplugged,
                                  self.daemon.log())
        return True

    def may_die(self):
        """By itself, at a failpoint."""
        return "--failpoints" in self.daemon.command

    def is_dead(self):
        return self.daemon.child.poll() is not None

    def kill(self):
        self.daemon.signal(signal.SIGKILL)
        lab.poll(self.is_dead, "it is dead")

    def replace_keeper(self):
        """The daemon must live: with both all would be lost."""
        # It answers before it has taken what the keeper holds.
        self._await_keeper(1)
        self.keeper.end()
        # Once it has noticed: the next one must not be what it loses.
        self._await_keeper(0)
        self.keeper = kept.Keeper(self.daemon.directory)
        self._case.addCleanup(self.keeper.end)
        self._await_keeper(1)
        lab.poll(lambda: self.keeper.memfds() > 0, "it has the job")

    def _await_keeper(self, count):
        lab.poll(lambda: "ballast_keeper_connected %d" % count in
                 self.daemon.metrics(), "the daemon has %d keepers" % count)

    def holds(self):
        """What daemon and keeper hold, and the files that are there."""
        return (self.daemon.footprint(), self.keeper.footprint(),
                footprint.files(self.daemon.directory))

    def check_holds(self, then):
        """Nothing more than `then`, after a moment."""
        for process, before in zip((self.daemon, self.keeper), then):
            lab.poll(lambda p=process, b=before: p.footprint().fits(b),
                     "%s has more than %s" % (process.footprint(), before))
        self._case.assertEqual(footprint.files(self.daemon.directory), then[2])

    def check_is_free(self):
        for process in (self.daemon, self.keeper):
            lab.poll(lambda p=process: p.memfds() == 0, "its memory is freed")


class Ranks:
    """The ranks of one job, each in one life after the other."""

    def __init__(self, case, nursery, world, options):
        """`options(rank, number)`: of the rank's life of that number."""
        self._case, self._nursery = case, nursery
        self._world, self._options = world, options
        self.lives = [[] for _ in range(world)]
        self.refused = 0  # lives that ended before their session was open
        for rank in range(world):
            self.start(rank)

    def start(self, rank):
        number = len(self.lives[rank])
        self.lives[rank].append(self._nursery.start(
            rank=rank, world=self._world, **self._options(rank, number)))

    def life(self, rank):
        return self.lives[rank][-1]

    def mind(self):
        """Whoever was killed, or never began, is replaced; no survivor is."""
        for rank, lives in enumerate(self.lives):
            if lives[-1].is_alive() or lives[-1].lines("closed"):
                continue
            errors = lives[-1].lines("error")
            if errors:
                self._case.assertEqual(lives[-1].lines("open"), [],
                                       "rank %d: %s" % (rank, errors))
                self.refused += 1
                time.sleep(0.05)
            else:
                self._case.assertTrue(lives[-1].is_to_die,
                                      "rank %d has died by itself" % rank)
            self.start(rank)

    def is_over(self):
        return all(lives[-1].lines("closed") for lives in self.lives)

    def step(self):
        """The last one that any rank has seen committed."""
        return max([int(line[0]) for lives in self.lives for life in lives
                    for line in life.lines("step")], default=0)

    def seen(self):
        """{step: what ranks saw of it}, checked: every rank sees each step
        once and in order, over all of its lives; one that died may have left
        the last one unsaid."""
        seen = {}
        for rank, lives in enumerate(self.lives):
            last = 0
            for life in lives:
                lines = life.lines("open")
                if not lines:
                    continue  # it never began
                begun = int(lines[0][0])
                self._case.assertIn(begun, (last + 1, last + 2),
                                    "rank %d: a step is lost or doubled" % rank)
                last = begun - 1
                for step, version, *what in life.lines("step"):
                    self._case.assertEqual(
                        (int(step), version), (last + 1, step),
                        "rank %d" % rank)
                    last += 1
                    self._case.assertEqual(
                        seen.setdefault(last, what), what,
                        "rank %d sees another step %d" % (rank, last))
        return seen
