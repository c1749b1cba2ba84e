"""PyTorch on several nodes: torchrun on each, and the process group's
store."""

import datetime
import os
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import lab
import nodes
from ballast import launch

try:
    import torch
    from torch import distributed
except ImportError:
    torch = None

if torch is not None and not lab.missing():
    import ballast
    import ballast.torch
    from ballast.torch import _rendezvous

_EXAMPLES = os.path.dirname(os.environ.get("BALLAST_TRAIN_GPT", "")) or "."
_NO_GLOO = torch is None or not distributed.is_available()


@unittest.skipIf(_NO_GLOO, "no torchrun")
class TorchrunTest(nodes.NodesCase):

    def run_nodes(self, count, workers):
        """What the example prints, torchrun on each node."""
        daemons = self.start_nodes(count)
        version = tuple(int(n) for n in re.findall(
            r"\d+", torch.__version__)[:2])
        flags = ["-r", "1", "-t", "1"] if version < (2, 0) else []
        port = str(launch.free_port())
        started = []
        for node, daemon in enumerate(daemons):
            env = dict(os.environ, BALLAST_ADDRESS=daemon.address,
                       OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
            env.pop("BALLAST_COORDINATOR", None)
            if node == 0:  # the others have it from the store
                env["BALLAST_COORDINATOR"] = self.coordinator
            log = tempfile.mkdtemp(prefix="ballast-it-", dir="/tmp")
            self.addCleanup(subprocess.run, ["rm", "-rf", log], check=True)
            started.append(subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *flags,
                 "--nnodes", str(count), "--node_rank", str(node),
                 "--nproc_per_node", str(workers), "--rdzv_id", "flowers",
                 "--log_dir", log, "--master_addr", "127.0.0.1",
                 "--master_port", port,
                 os.path.join(_EXAMPLES, "multi_node.py")], env=env,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        try:
            outputs = [one.communicate(timeout=3 * lab.PATIENCE)[0]
                       for one in started]
        finally:
            for one in started:
                one.kill()
                one.wait()
        for one, output in zip(started, outputs):
            self.assertEqual(one.returncode, 0, output)
        return "".join(outputs)

    def test_the_example_on_two_nodes(self):  # I8, I25
        digests = []
        for count, workers in ((2, 2), (1, 4)):
            output = self.run_nodes(count, workers)
            digests += re.findall(r"rank \d digest (\w{64})", output)
            losses = [float(t) for t in re.findall(
                r"validation loss ([0-9.]+)", output)]
            self.assertEqual(len(losses), 3)
            self.assertLess(losses[-1], 0.9 * losses[0])
        self.assertEqual(len(digests), 8)
        self.assertEqual(len(set(digests)), 1)  # buffers included


class FakeStore:
    """A process group's, of one process."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def wait(self, keys, timeout):
        assert isinstance(timeout, datetime.timedelta)
        if keys[0] not in self.values:
            raise RuntimeError("wait timeout")


@unittest.skipIf(torch is None, "no torch")
class RendezvousTest(lab.TestCase):
    """Who says what to whom, by a store that is played."""

    def setUp(self):
        super().setUp()
        self.store = FakeStore()

    def ask(self, rank, given=None, env=None, nodes_=2, store=True):
        return _rendezvous.coordinator(
            given, {"rank": rank, "world_size": 2 * nodes_,
                    "local_world_size": 2, "node_rank": rank // 2}, "job",
            env or {}, 0.1, lambda: self.store if store else None)

    def test_rank_0_tells_what_it_was_given(self):
        self.assertEqual(self.ask(0, "host:1234"), "host:1234")
        self.assertEqual(self.ask(2), "host:1234")
        self.assertEqual(self.ask(3), "host:1234")

    def test_or_what_its_environment_says(self):
        self.assertIsNone(self.ask(0, env={"BALLAST_COORDINATOR": "a:1"}))
        self.assertEqual(self.ask(2), "a:1")
        self.ask(0, env={"MASTER_ADDR": "10.1.2.3"})
        self.assertEqual(self.ask(2), "10.1.2.3:7470")

    def test_or_its_address(self):
        with mock.patch("socket.gethostbyname", return_value="10.9.8.7"):
            self.ask(0, env={"MASTER_ADDR": "127.0.0.1"})
        self.assertEqual(self.ask(2), "10.9.8.7:7470")

    def test_or_that_nobody_knows(self):
        for answer in ({"return_value": "127.0.1.1"},
                       {"side_effect": OSError("no such host")}):
            with mock.patch("socket.gethostbyname", **answer):
                self.ask(0)
            self.assertIsNone(self.ask(2))

    def test_ones_own_knowledge_comes_first(self):
        self.ask(0, "host:1234")
        self.assertEqual(self.ask(2, "mine:1"), "mine:1")
        self.assertIsNone(self.ask(2, env={"BALLAST_COORDINATOR": "b:2"}))

    def test_node_0_needs_none(self):
        self.assertIsNone(self.ask(1))

    def test_without_a_store_or_other_nodes_nothing_is_asked(self):
        self.assertIsNone(self.ask(2, store=False))
        self.assertEqual(self.ask(0, "x:1", nodes_=1), "x:1")
        self.assertEqual(self.store.values, {})

    def test_rank_0_that_does_not_come_is_named(self):  # I23
        self.assertRaisesWith(ballast.DeadlineExceeded,
                              ["rank 0 has left no coordinator for job job",
                               "BALLAST_COORDINATOR"], lambda: self.ask(2))

    def test_what_is_no_address_is_refused(self):
        self.store.set("ballast/coordinator/job", "nonsense")
        self.assertRaisesWith(ballast.InvalidArgument,
                              ["rank 0 left", "nonsense", "host:port"],
                              lambda: self.ask(2))

    def test_a_torch_that_does_not_show_its_store(self):
        with mock.patch.object(torch, "distributed", create=True) as fake:
            fake.is_available.return_value = True
            fake.is_initialized.return_value = True
            fake.distributed_c10d = object()
            self.assertIsNone(_rendezvous.default_store())
            fake.is_initialized.return_value = False
            self.assertIsNone(_rendezvous.default_store())
        with mock.patch.object(torch, "distributed", None, create=True):
            self.assertIsNone(_rendezvous.default_store())


@unittest.skipIf(_NO_GLOO, "no Gloo")
class StoreTest(lab.TestCase):

    def group(self):
        distributed.init_process_group(
            "gloo", store=distributed.HashStore(), rank=0, world_size=1)
        self.addCleanup(distributed.destroy_process_group)

    def test_the_real_store_is_found(self):
        self.group()
        store = _rendezvous.default_store()
        store.set("ballast/coordinator/job", "a:1")
        self.assertEqual(store.get("ballast/coordinator/job"), b"a:1")


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
