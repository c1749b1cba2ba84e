#!/usr/bin/python3 -B
"""The lab with daemons that only answer: who gets what, links that keep their
rate, and nothing left whatever ends it."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, _HERE)

import network  # noqa: E402

_LAB = os.path.join(os.path.dirname(_HERE), "lab")
_PATIENCE = 60.0
_BITS_PER_SECOND = 20e6
_SENT = 2_000_000
_BURST = 256 * 1024

# Prints how many bytes came, then says so to the sender.
_RECEIVER = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as server:
    print("ready", flush=True)
    peer, _ = server.accept()
    total = 0
    while data := peer.recv(1 << 16):
        total += len(data)
    peer.sendall(b"x")
    print(total, flush=True)
"""
# Prints the seconds until the receiver has everything.
_SENDER = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5000)) as peer:
    start = time.monotonic()
    peer.sendall(bytes(int(sys.argv[2])))
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
    print(time.monotonic() - start)
"""


def missing_rights():
    try:
        network.check_rights()
    except network.NetworkError as error:
        return str(error)
    return ""


def poll(condition, what):
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("not within %g s: %s" % (_PATIENCE, what))
        time.sleep(0.02)


def runs(pid):
    try:
        with open("/proc/%d/stat" % pid, encoding="utf-8") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class LabCase(unittest.TestCase):

    def setUp(self):
        # Longer than a socket's path may be: the lab takes another folder.
        scratch = tempfile.TemporaryDirectory(prefix="lab-test-" + "x" * 90)
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name
        fake = os.path.join(_HERE, "fake_daemon.py")
        self.env = dict(os.environ, BALLAST_LAB_DIR=self.directory,
                        BALLASTD=fake, BALLASTCTL=fake, BALLAST_LIBRARY=fake,
                        BALLAST_KEEPER=fake)

    def lab(self, *arguments, code=0, before=()):
        done = subprocess.run(
            [*before, sys.executable, "-B", _LAB, *arguments], env=self.env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=2 * _PATIENCE,
            check=False)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def start(self, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-B", _LAB, *arguments], env=self.env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

        def end():
            if process.poll() is None:
                process.terminate()
                process.wait()
            process.stdout.close()

        self.addCleanup(end)
        return process

    def up(self, *arguments):
        lab_id = self.lab("up", *arguments).strip()
        self.addCleanup(subprocess.run, [sys.executable, "-B", _LAB, "down",
                                         lab_id], stdout=subprocess.DEVNULL,
                        check=False)
        return lab_id

    def state(self):
        with open(os.path.join(self.directory, "lab.json"),
                  encoding="utf-8") as stream:
            return json.load(stream)

    def pids(self):
        """Of all children that have a pid file, in the order of their names."""
        found = []
        for name in sorted(os.listdir(self.directory)):
            if name.endswith(".pid"):
                with open(os.path.join(self.directory, name),
                          encoding="utf-8") as stream:
                    found.append(int(stream.read()))
        return found

    def assert_nothing_left(self, lab_id, sockets):  # I28
        self.assertEqual(network.of_lab(lab_id, network.namespaces()), [])
        self.assertFalse(os.path.lexists("/tmp/ballast-lab-" + lab_id))
        self.assertFalse(os.path.exists(sockets))
        self.assertNotIn("lab.json", os.listdir(self.directory))


class LoopbackTest(LabCase):

    def test_every_worker_knows_its_place(self):
        output = self.lab(
            "run", "--nodes", "2", "--workers", "2", "--", "/bin/sh", "-c",
            "echo $WORLD_SIZE $GROUP_RANK $LOCAL_RANK/$LOCAL_WORLD_SIZE "
            "$BALLAST_COORDINATOR $BALLAST_ADDRESS")
        lines = re.findall(r"\[rank (\d)\] 4 (\d) (\d)/2 (\S+) (\S+)", output)
        self.assertEqual(sorted(line[:3] for line in lines), [
            ("0", "0", "0"), ("1", "0", "1"), ("2", "1", "0"),
            ("3", "1", "1")])
        self.assertEqual(len({line[3] for line in lines}), 1)
        self.assertEqual(len({(line[1], line[4]) for line in lines}), 2)

    def test_daemons_have_ports_of_their_own_and_one_coordinator(self):
        self.up("--nodes", "3")
        ports, coordinators = [], set()
        for node in range(3):
            with open(os.path.join(self.directory, "daemon-%d.yaml" % node),
                      encoding="utf-8") as stream:
                text = stream.read()
            ports += re.findall(r"(?:http|health|peer): 127.0.0.1:(\d+)", text)
            coordinators.update(re.findall(r"coordinator: (\S+)", text))
        self.assertEqual(len(set(ports)), 9)
        self.assertEqual(coordinators, {"127.0.0.1:" + ports[2]})

    def test_a_failed_worker_is_the_labs_failure(self):
        output = self.lab("run", "--nodes", "2", "--workers", "1", "--",
                          "/bin/sh", "-c", "[ $RANK = 0 ] || exit 3", code=3)
        self.assertIn("worker-1 exited with code 3", output)

    def test_a_daemon_that_does_not_start_is_named(self):
        self.env["BALLASTD"] = "/bin/false"
        output = self.lab("up", "--nodes", "2", code=1)
        self.assertIn("daemon 0 did not answer", output)
        self.assertNotIn("lab.json", os.listdir(self.directory))

    def test_one_lab_a_folder(self):
        lab_id = self.up()
        self.assertIn(lab_id, self.lab("up", code=1))

    def test_what_a_killed_lab_left_is_replaced(self):
        lab_id = self.up()
        state = self.state()
        os.kill(state["pid"], signal.SIGKILL)
        poll(lambda: not runs(state["pid"]), "the lab has ended")
        self.assertNotEqual(self.up(), lab_id)
        self.assertFalse(os.path.lexists("/tmp/ballast-lab-" + lab_id))

    def test_unknown_labs_and_nodes(self):
        self.assertIn("no lab", self.lab("down", "zzzzz9", code=1))
        self.assertIn("no lab", self.lab("down", "../tmp", code=1))
        lab_id = self.up()
        self.assertIn("has 1 nodes", self.lab(
            "exec", "--lab", lab_id, "1", "--", "true", code=1))


class KeepersTest(LabCase):

    def test_a_daemon_is_replaced_and_nothing_else(self):
        self.up("--nodes", "2", "--keepers")
        for node in range(2):
            with open(os.path.join(self.directory, "daemon-%d.yaml" % node),
                      encoding="utf-8") as stream:
                keeper = re.search(r"^keeper:\n  socket: (\S+)$", stream.read(),
                                   re.MULTILINE).group(1)
            self.assertTrue(os.path.exists(keeper))
        for kill in ([], ["--kill"]):
            before = self.pids()  # daemons, then keepers
            self.assertEqual(len(before), 4)
            output = self.lab("restart-daemon", *kill, "1")
            after = self.pids()
            self.assertIn("process %d after %d" % (after[1], before[1]), output)
            self.assertNotEqual(after[1], before[1])
            self.assertEqual(after[:1] + after[2:], before[:1] + before[2:])

    def test_the_folders_lab_is_meant(self):
        """Whatever other labs there are; without a folder it must be named."""
        self.up("--keepers")
        before = self.pids()
        with tempfile.TemporaryDirectory(prefix="lab-test-") as other:
            self.env["BALLAST_LAB_DIR"] = other
            self.assertIn("no lab of this user in " + other,
                          self.lab("restart-daemon", "0", code=1))
            lab_id = self.up()
            self.assertIn("has no keepers",
                          self.lab("restart-daemon", "0", code=1))
            del self.env["BALLAST_LAB_DIR"]
            self.assertIn("name one with --lab",
                          self.lab("restart-daemon", "0", code=1))
            self.env["BALLAST_LAB_DIR"] = self.directory
            self.lab("restart-daemon", "0")
            self.assertNotEqual(self.pids()[0], before[0])
            self.lab("down", lab_id)

    def test_a_keeper_is_replaced(self):
        self.up("--keepers")
        daemon, keeper = self.pids()
        os.kill(keeper, signal.SIGKILL)
        poll(lambda: self.pids()[1:] not in ([], [keeper]), "there is another")
        self.assertEqual(self.pids()[0], daemon)

    def test_the_end_ends_keepers(self):  # I28
        lab_id = self.up("--nodes", "2", "--keepers")
        state, pids = self.state(), self.pids()
        self.lab("down", lab_id)
        self.assertFalse(any(map(runs, pids)))
        self.assert_nothing_left(lab_id, state["sockets"])

    def test_what_cannot_be_restarted_is_refused(self):
        self.up()
        pids = self.pids()
        output = self.lab("restart-daemon", "0", code=1)
        self.assertIn("has no keepers", output)
        self.assertIn("--keepers makes a lab that has", output)
        self.assertIn("has 1 nodes", self.lab("restart-daemon", "1", code=1))
        self.assertEqual(self.pids(), pids)

    def test_nobody_restarts_where_the_lab_is_gone(self):
        self.up("--keepers")
        state = self.state()
        os.kill(state["pid"], signal.SIGKILL)
        poll(lambda: not runs(state["pid"]), "the lab has ended")
        output = self.lab("restart-daemon", "0", code=1)
        self.assertIn("tools/lab down " + state["lab_id"], output)

    def test_a_daemon_without_a_keeper_ends_its_lab(self):
        """Control: nobody starts it again."""
        self.up()
        pid, = self.pids()
        os.kill(pid, signal.SIGKILL)
        path = os.path.join(self.directory, "lab.log")

        def is_said():
            with open(path, encoding="utf-8") as stream:
                return "daemon-0 was ended by SIGKILL; see" in stream.read()

        poll(is_said, "the lab says so")
        self.assertFalse(runs(pid))
        self.assertEqual(self.pids(), [])


class RightsTest(LabCase):

    def test_a_rate_without_the_right_is_refused(self):
        before = () if os.geteuid() != 0 else (
            "setpriv", "--bounding-set", "-net_admin", "--inh-caps",
            "-net_admin")
        output = self.lab("up", "--rate", "1gbit", code=1, before=before)
        self.assertIn("CAP_NET_ADMIN", output)
        self.assertIn("run it as root", output)


@unittest.skipIf(missing_rights(), missing_rights())
class RateTest(LabCase):

    def transfer(self, lab_id, receiver, sender, host):
        """Seconds that _SENT bytes take."""
        def inside(node, *command):
            return self.start("exec", "--lab", lab_id, str(node), "--",
                              sys.executable, *command)

        target = inside(receiver, "-c", _RECEIVER, host)
        self.assertEqual(target.stdout.readline(), "ready\n")
        source = inside(sender, "-c", _SENDER, host, str(_SENT))
        self.assertEqual(int(target.communicate(timeout=_PATIENCE)[0]), _SENT)
        return float(source.communicate(timeout=_PATIENCE)[0])

    def sent(self, lab_id, node):
        return int(self.lab("exec", "--lab", lab_id, str(node), "--", "cat",
                            "/sys/class/net/eth0/statistics/tx_bytes"))

    def test_the_link_has_its_rate_and_counts(self):
        lab_id = self.up("--nodes", "2", "--rate",
                         "%dmbit" % (_BITS_PER_SECOND / 1e6))
        least = 8 * (_SENT - _BURST) / _BITS_PER_SECOND
        for receiver, sender, host in ((0, 1, "10.77.0.1"),
                                       (1, 0, "10.77.0.2")):
            before = self.sent(lab_id, sender)
            seconds = self.transfer(lab_id, receiver, sender, host)
            counted = self.sent(lab_id, sender) - before
            self.assertGreaterEqual(seconds, least)
            self.assertGreaterEqual(counted, _SENT)
            self.assertLess(counted, 1.08 * _SENT)
        # Control: what does not cross the link is not held up, nor counted.
        before = self.sent(lab_id, 0)
        self.assertLess(self.transfer(lab_id, 0, 0, "10.77.0.1"), least)
        self.assertLess(self.sent(lab_id, 0) - before, 0.01 * _SENT)

    def test_after_sigkill_down_removes_everything(self):  # I28
        links = os.listdir("/sys/class/net")
        lab_id = self.up("--nodes", "2", "--rate", "1gbit")
        state = self.state()
        stray = self.start("exec", "--lab", lab_id, "1", "--", "sleep",
                           "1000")
        daemons = self.pids()
        self.assertEqual(len(daemons), 2)
        poll(lambda: str(stray.pid) in subprocess.run(
            ["ip", "netns", "pids", "blab%sn1" % lab_id], text=True,
            stdout=subprocess.PIPE, check=True).stdout.split(),
            "the stray process is inside")
        os.kill(state["pid"], signal.SIGKILL)
        poll(lambda: not any(map(runs, daemons)), "the daemons have ended")
        self.assertEqual(
            len(network.of_lab(lab_id, network.namespaces())), 3)
        self.lab("down", lab_id)
        self.assert_nothing_left(lab_id, state["sockets"])
        self.assertEqual(stray.wait(_PATIENCE), -signal.SIGTERM)
        self.assertEqual(sorted(os.listdir("/sys/class/net")), sorted(links))

    def test_down_needs_no_state(self):
        lab_id = self.up("--nodes", "1", "--rate", "1gbit")
        state = self.state()
        os.kill(state["pid"], signal.SIGKILL)
        os.remove(os.path.join(self.directory, "lab.json"))
        self.lab("down", lab_id)
        self.assert_nothing_left(lab_id, state["sockets"])

    def test_a_signal_ends_the_run_and_removes_everything(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(number):
                process = self.start(
                    "run", "--nodes", "2", "--workers", "1", "--rate",
                    "1gbit", "--", "/bin/sh", "-c", "echo here; sleep 1000")
                while not process.stdout.readline().endswith("here\n"):
                    pass
                state = self.state()
                process.send_signal(number)
                self.assertEqual(process.wait(_PATIENCE), 128 + number)
                self.assert_nothing_left(state["lab_id"], state["sockets"])
                self.assertEqual(self.pids(), [])

    def test_what_each_node_sent_is_said(self):
        output = self.lab("run", "--nodes", "2", "--workers", "1", "--rate",
                          "1gbit", "--", "/bin/sh", "-c",
                          "ls /sys/class/net/$BALLAST_LAB_INTERFACE/mtu")
        self.assertEqual(
            re.findall(r"node (\d) tx_bytes \d+", output), ["0", "1"])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
