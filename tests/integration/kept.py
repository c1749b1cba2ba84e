"""Daemons whose jobs a keeper holds: what the tests of their death share."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import footprint
import lab
import nursery

KEEPER = os.environ.get("BALLAST_KEEPER", "")


class Keeper:
    """A ballast-keeper in a daemon's directory. `fds`: its hard limit of open
    descriptors."""

    def __init__(self, directory, fds=None):
        self.socket = directory + "/keeper.sock"
        self.log = directory + "/keeper.log"
        limit = ["prlimit", "--nofile=%d" % fds] if fds else []
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                limit + [KEEPER, "--socket", self.socket], stderr=log)
        lab.poll(lambda: os.path.exists(self.socket), "the keeper listens")

    def footprint(self):
        return footprint.of(self.process.pid)

    def memfds(self):
        return self.footprint().memfds

    def end(self, number=signal.SIGKILL):
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=lab.PATIENCE)


@unittest.skipIf(not os.path.exists(KEEPER), "BALLAST_KEEPER is not there")
class KeptCase(lab.TestCase):

    def setUp(self):
        super().setUp()
        path = os.pathsep.join(sys.path)
        patch = unittest.mock.patch.dict(os.environ, PYTHONPATH=path)
        patch.start()
        self.addCleanup(patch.stop)

    def start_kept(self, *overrides, keeper_fds=None, **options):
        """A daemon and its keeper."""
        daemon = self.start_daemon(*overrides, **options)
        keeper = Keeper(daemon.directory, keeper_fds)
        self.addCleanup(keeper.end)
        daemon.signal(signal.SIGTERM)
        daemon.wait()
        daemon.command += ["--set", "keeper.socket=" + keeper.socket]
        return daemon.start(), keeper

    def start_nursery(self):
        """And the directory of its records."""
        folder = tempfile.TemporaryDirectory(prefix="ballast-it-")
        self.addCleanup(folder.cleanup)
        ranks = nursery.Nursery(folder.name)
        self.addCleanup(ranks.__exit__)
        return ranks, folder.name

    def digests(self, lives):
        """What ranks end with, each in one life: one digest."""
        ends = set()
        for life in lives:
            lab.poll(lambda l=life: not l.is_alive(), "a rank has ended")
            self.assertEqual(life.lines("error"), [])
            ends.add(tuple(life.lines("end")[0]))
        self.assertEqual(len(ends), 1, ends)
        return ends.pop()[1]
