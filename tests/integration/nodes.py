"""Several daemons over the loopback device, and one session per rank."""

import lab

if not lab.missing():
    from ballast import launch


def waiting_for(daemon):
    """What the only job of the daemon waits for, in words."""
    jobs = (daemon.control("status") or {}).get("jobs", [])
    return jobs[0]["waiting_for"] if len(jobs) == 1 else ""


class NodesCase(lab.TestCase):

    def start_nodes(self, count, *overrides):
        """Daemons that find one another at the first one's port; a lost link
        ends a job, unless overrides say more."""
        ports = [launch.free_port() for _ in range(count)]
        self.peers = ["127.0.0.1:%d" % port for port in ports]
        self.coordinator = self.peers[0]
        return [self.start_daemon(
            "listen.peer=" + peer, "transport.ucx_devices=lo",
            "transport.peer_timeout=3s", "transport.connect_timeout=10s",
            "transport.relink_timeout=0s", "node.name=host-%d" % node,
            *overrides, http=True)
                for node, peer in enumerate(self.peers)]

    def session(self, daemons, rank, workers, tensors, **options):
        """A session of `rank`, with `workers` ranks per daemon."""
        node = rank // workers
        arguments = dict(local_rank=rank % workers, local_world_size=workers,
                         node_rank=node, coordinator=self.coordinator)
        arguments.update(options)
        return daemons[node].session(rank, workers * len(daemons), tensors,
                                     **arguments)

    def assert_nothing_is_left(self, daemons):  # I28
        for node, daemon in enumerate(daemons):
            lab.poll(lambda d=daemon: d.memfds() == 0,
                     "node %d has freed its memory" % node)
