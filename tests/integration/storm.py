"""What hits one job, event by event, at random moments: whoever dies is
replaced, and what a keeper holds is never lost."""

import random
import signal
import time

import chaos
import lab
import nodes

# In seconds: a node that is silent so long is missed.
_PEER_TIMEOUT = 2


def _wait(seconds, mind=lambda: None):
    end = time.monotonic() + seconds
    while True:
        mind()
        if time.monotonic() >= end:
            return
        time.sleep(0.003)


def settings(link, node):
    """Of a daemon of node `node`; link: of several nodes, or None."""
    if link is None:
        return []
    return ["listen.peer=" + coordinator(link, node),
            "node.name=host-%d" % node,
            "transport.ucx_devices=" + link.devices[node],
            "transport.peer_timeout=%ds" % _PEER_TIMEOUT,
            "transport.connect_timeout=10s", "transport.relink_timeout=60s"]


def places(link, node):
    """How it comes to its network: see lab.Daemon."""
    return {} if link is None else {
        "wrap": lambda command: link.inside(node, command),
        "entered": lambda: link.entered(node)}


def coordinator(link, node=0):
    return "" if link is None else link.addresses[node] + ":7470"


class Storm:
    """`homes`: of the daemons that may die, by node; `link`: the cables that
    may be cut. Each event is a method; `told` are the words of those that
    were."""

    def __init__(self, seed, ranks, homes=(), link=None):
        self.ranks, self.homes, self.link = ranks, homes, link
        self.random = random.Random(seed)
        self.told = []
        self._kinds = ()
        self._is_calm = False  # whoever starts now does not die by itself

    def begin(self):
        lab.poll(lambda: self.ranks.step() >= 2, "the job runs")

    def run(self, kinds):
        """`kinds`: of events, and how many of each; between them there is a
        moment in which all may happen."""
        self._kinds = kinds
        events = [getattr(self, kind) for kind, count in kinds.items()
                  for _ in range(count)]
        self.random.shuffle(events)
        for event in events:
            _wait(self.random.uniform(0.0, 0.12), self.mind)
            event()
            if self._draws(0.5):
                _wait(self.random.uniform(0.0, 0.05))  # nobody comes yet
        for home in self.homes:
            self._make_immortal(home)

    def mind(self):
        """Whoever died is replaced."""
        for home in self.homes:
            home.mind(self._failpoints)
        self.ranks.mind()

    # ---- Events. ----

    def worker(self):
        self._kill_workers(1)

    def two_workers(self):
        self._kill_workers(2)

    def daemon(self):
        self._kill_daemons([self.random.randrange(len(self.homes))])

    def all_daemons(self):
        self._kill_daemons(range(len(self.homes)))

    def keeper(self):
        """Never while its daemon may die too."""
        node = self.random.randrange(len(self.homes))
        self._make_immortal(self.homes[node])
        self._tell("keeper %d" % node)
        self.homes[node].replace_keeper()

    def stopped_worker(self):
        rank = self.random.randrange(len(self.ranks.lives))
        self._tell("worker %d stops" % rank)
        self._stop(self.ranks.life(rank), self._while_short)

    def stopped_daemon(self):
        node = self.random.randrange(len(self.homes))
        self._tell("daemon %d stops" % node)
        self._stop(self.homes[node].daemon, self._while_short)

    def lost_daemon(self):
        """Stopped for so long that the others miss it."""
        node = self.random.randrange(len(self.homes))
        self._tell("daemon %d stops until missed" % node)
        self._stop(self.homes[node].daemon, lambda: self._while_lost(node))

    def short_cut(self):
        """Nobody may notice."""
        self._cut(self._while_short, "")

    def long_cut(self):
        """All links are lost."""
        self._cut(self._while_lost, " until missed")

    # ---- What they are made of. ----

    def _draws(self, probability):
        return self.random.random() < probability

    def _tell(self, what):
        self.told.append(what)

    def _failpoints(self):
        """None, or one of those that a daemon comes to again and again."""
        if self._is_calm or self._draws(0.5):
            return ""
        return "%s=kill@%d" % (
            self.random.choice(chaos.names("FAILPOINT")),
            self.random.choice((1, 2, 3, 5, 8, 13, 40, 100)))

    def _kill_workers(self, count):
        ranks = self.random.sample(range(len(self.ranks.lives)), count)
        self._tell("workers %s die" % ranks)
        for rank in ranks:
            self.ranks.life(rank).kill()

    def _kill_daemons(self, victims):
        """Each by itself, if it is to; else from outside, all at once."""
        victims = [self.homes[node] for node in victims]
        deaths = [home.deaths for home in victims]
        if any(home.may_die() for home in victims):
            _wait(0.3, self.mind)
        self._tell("daemons %s die" % [self.homes.index(h) for h in victims])
        for home, before in zip(victims, deaths):
            if home.deaths == before and not home.is_dead():
                home.daemon.signal(signal.SIGKILL)
        for home, before in zip(victims, deaths):
            if home.deaths == before:
                lab.poll(home.is_dead, "it is dead")

    def _make_immortal(self, home):
        """Until it dies the next time."""
        self._is_calm = True
        self.mind()
        while home.may_die():
            self._kill_daemons([self.homes.index(home)])
            self.mind()
        self._is_calm = False

    def _stop(self, process, meanwhile):
        process.signal(signal.SIGSTOP)
        try:
            meanwhile()
        finally:
            process.signal(signal.SIGCONT)

    def _cut(self, meanwhile, words):
        node = self.random.randrange(len(self.homes))
        self._tell("cut %d%s" % (node, words))
        self._plug(False)
        self.link.cut(node)
        try:
            # Somebody dies besides.
            if self._draws(0.5):
                self.random.choice([
                    getattr(self, kind) for kind in ("worker", "daemon")
                    if kind in self._kinds])()
            meanwhile()
        finally:
            self.link.mend()
            self._plug(True)

    def _plug(self, is_plugged):
        for home in self.homes:
            home.is_unplugged = not is_plugged

    def _while_short(self):
        _wait(self.random.uniform(0.05, _PEER_TIMEOUT / 3), self.mind)

    def _while_lost(self, stopped=None):
        """Until a node says that it has lost another one."""

        def is_lost():
            self.mind()
            alive = [home.daemon for node, home in enumerate(self.homes)
                     if node != stopped and not home.is_dead()]
            return not alive or any(
                "have lost one another" in nodes.waiting_for(daemon)
                for daemon in alive)

        lab.poll(is_lost, "a node misses another one")
