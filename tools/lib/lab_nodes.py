"""The lab's daemons: where each listens, its configuration, its start.

Without a rate all nodes share the loopback interface and differ in their
ports. With one, each has a network namespace (network.py), in which its daemon
and its workers run, so that all have the same ports.

Threading: none.
"""

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Sequence, Set, Tuple

import labs
import network
from ballast import launch

_START_SECONDS = 60
# Inside a namespace nobody else has ports.
_PEER, _HTTP, _HEALTH, _MASTER = 7470, 7471, 7472, 29500

_CONFIG = """\
# Written by tools/lab.
listen:
  workers: {workers}
  admin: {admin}
  http: 127.0.0.1:{http}
  health: 127.0.0.1:{health}
  peer: {peer}
node:
  name: lab-{rank}
  coordinator: {coordinator}
compute:
  threads: {threads}
transport:
  ucx_tls: tcp
  ucx_devices: {interface}
"""
_KEEPER_CONFIG = """\
keeper:
  socket: {keeper}
"""


class StartFailed(Exception):
    """Says which daemon, and where its log is."""


@dataclass(frozen=True)
class Node:
    """One daemon's addresses, and how to run a command beside it."""
    rank: int
    workers: str
    admin: str
    http: int
    health: int
    peer: str
    interface: str
    keeper: str  # its socket; "" where there is none
    network: Optional[network.Network]

    def inside(self, command: Sequence[str]) -> List[str]:
        if self.network is None:
            return list(command)
        return self.network.inside(self.rank, command)


@dataclass(frozen=True)
class Cluster:
    """All nodes, and where rank 0 of the workers' own rendezvous listens."""
    nodes: List[Node]
    master_addr: str
    master_port: int

    @property
    def coordinator(self) -> str:
        return self.nodes[0].peer

    def environment(self, node: Node) -> Dict[str, str]:
        """What a command on this node gets beside torchrun's variables."""
        env = {"BALLAST_ADDRESS": node.workers,
               "BALLAST_COORDINATOR": self.coordinator,
               "GROUP_RANK": str(node.rank),
               "GLOO_SOCKET_IFNAME": node.interface}
        if node.network is not None:
            # Its counters are the job's traffic and nothing else.
            env["BALLAST_LAB_INTERFACE"] = node.interface
        return env


def plan(sockets: str, count: int, links: Optional[network.Network],
         keepers: bool = False) -> Cluster:
    """Decides all addresses. Without `links`, takes ports that are free."""
    used: Set[int] = set()

    def port(fixed: int) -> int:
        if links is not None:
            return fixed
        chosen = launch.free_port()
        while chosen in used:
            chosen = launch.free_port()
        used.add(chosen)
        return chosen

    def host(rank: int) -> str:
        return links.address(rank) if links is not None else "127.0.0.1"

    nodes = [Node(
        rank=rank, workers="unix://%s/ballastd-%d.sock" % (sockets, rank),
        admin="unix://%s/admin-%d.sock" % (sockets, rank),
        http=port(_HTTP), health=port(_HEALTH),
        peer="%s:%d" % (host(rank), port(_PEER)),
        interface=network.INTERFACE if links is not None else "lo",
        keeper="%s/keeper-%d.sock" % (sockets, rank) if keepers else "",
        network=links) for rank in range(count)]
    return Cluster(nodes, host(0), port(_MASTER))


def configuration(node: Node, cluster: Cluster, cores: int) -> str:
    """The daemon's YAML. The machine's cores are shared by all daemons."""
    text = _CONFIG + (_KEEPER_CONFIG if node.keeper else "")
    return text.format(
        workers=node.workers, admin=node.admin, http=node.http,
        health=node.health, peer=node.peer, rank=node.rank,
        coordinator=cluster.coordinator, interface=node.interface,
        keeper=node.keeper,
        threads=max(1, cores // len(cluster.nodes)))


@contextlib.contextmanager
def running(lab: labs.Lab, count: int, programs: Dict[str, str],
            launcher: launch.Launcher, settings: Sequence[str] = (),
            keepers: bool = False) -> Iterator[Cluster]:
    """The lab's namespaces and daemons, and their keepers, while the context
    lasts; the launcher is entered and left here. `settings`: KEY=VALUE, of each
    daemon's configuration. Raises StartFailed or NetworkError."""
    overrides = [word for setting in settings for word in ("--set", setting)]
    links = network.Network(lab.lab_id, count, lab.rate) if lab.rate else None
    cluster = plan(lab.sockets, count, links, keepers)
    if links is not None:
        network.apply(links)
    given = {name: os.environ[name] for name in (*programs, "PYTHONPATH")
             if name in os.environ}
    lab.nodes = [{"inside": node.inside([]), "is_kept": keepers,
                  "env": {**given, **cluster.environment(node)}}
                 for node in cluster.nodes]
    lab.save()
    with launcher:
        daemons = []
        for node in cluster.nodes:
            path = os.path.join(lab.directory, "daemon-%d.yaml" % node.rank)
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(configuration(node, cluster, os.cpu_count() or 1))
            if node.keeper:
                launcher.start_keeper(node.rank, [
                    programs["BALLAST_KEEPER"], "--socket", node.keeper])
            daemons.append(launcher.start_daemon(
                node.rank, node.inside(
                    [programs["BALLASTD"], "--config", path, *overrides]),
                is_kept=keepers))
        for node, daemon in zip(cluster.nodes, daemons):
            if not launch.wait_for_daemon(node.workers, _START_SECONDS,
                                          daemon):
                raise StartFailed("daemon %d did not answer, see %s" %
                                  (node.rank, daemon.log))
        yield cluster


def restart_daemon(lab: labs.Lab, rank: int, number: int) -> Tuple[int, int]:
    """Ends the node's daemon by a signal and waits for the one that the lab's
    process starts then: the pids of both. Raises StartFailed."""
    if not lab.nodes[rank].get("is_kept"):
        raise StartFailed(
            "lab %s has no keepers: with a daemon its jobs would end; "
            "--keepers makes a lab that has" % lab.lab_id)
    if not lab.owner_runs():
        raise StartFailed(
            "the process of lab %s is gone, nobody would start the daemon "
            "again; tools/lab down %s removes the lab"
            % (lab.lab_id, lab.lab_id))
    path = os.path.join(lab.directory, "daemon-%d" % rank)
    old = _pid(path)
    if old is None:
        raise StartFailed("daemon %d does not run, see %s.log" % (rank, path))
    os.kill(old, number)
    deadline = time.monotonic() + _START_SECONDS
    while True:
        new = _pid(path)
        if new not in (None, old) and launch.daemon_answers(
                lab.nodes[rank]["env"]["BALLAST_ADDRESS"]):
            return old, new
        if not lab.owner_runs():
            raise StartFailed("lab %s has ended meanwhile" % lab.lab_id)
        if time.monotonic() >= deadline:
            raise StartFailed("nobody came after daemon %d in %d s, see %s.log"
                              % (rank, _START_SECONDS, path))
        time.sleep(0.05)


def _pid(path: str) -> Optional[int]:
    try:
        with open(path + ".pid", encoding="utf-8") as stream:
            return int(stream.read())
    except FileNotFoundError:  # between two of them
        return None


def start_workers(launcher: launch.Launcher, cluster: Cluster, workers: int,
                  command: Sequence[str]) -> None:
    """`workers` of each node, ranks in node order."""
    world_size = len(cluster.nodes) * workers
    for node in cluster.nodes:
        base = dict(os.environ, **cluster.environment(node))
        for local_rank in range(workers):
            rank = node.rank * workers + local_rank
            launcher.start_worker(
                rank, node.inside(command), launch.worker_environment(
                    rank=rank, world_size=world_size, local_rank=local_rank,
                    local_world_size=workers, node_rank=node.rank,
                    address=node.workers, coordinator=cluster.coordinator,
                    master_addr=cluster.master_addr,
                    master_port=cluster.master_port, job="lab", base=base))
