#!/usr/bin/python3 -B
"""A lab whose real daemons are ended while workers train: the digest of a lab
in which nothing happened."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
_LAB = os.path.join(_ROOT, "tools", "lab")
_PROGRAMS = {
    "BALLASTD": "server/daemon/ballastd",
    "BALLASTCTL": "client/ctl/ballastctl",
    "BALLAST_KEEPER": "server/keeper/ballast-keeper",
    "BALLAST_LIBRARY": "client/capi/libballast.so",
}
_SECONDS = 120
# A gradient is a function of step and rank. At a gate the ranks wait until the
# restart that began some steps before is over, or the job might be first.
_WORKER = """
import hashlib, os, time
import numpy as np, ballast
with ballast.Session(tensors={"w": np.ones(30011, np.float32)},
                     optimizer={"name": "adamw", "lr": 0.01}) as s:
    for step in s.steps(30):
        random = np.random.default_rng(1000 * step + s.rank)
        s.grads["w"][...] = random.standard_normal(30011, np.float32)
        time.sleep(0.05)
        gate = os.environ.get("GATES", "") and os.path.join(
            os.environ["GATES"], "gate-%d" % step)
        while gate and step % 6 == 0 and not os.path.exists(gate):
            time.sleep(0.01)
        s.step()
        print("step", step, flush=True)
    print("digest", hashlib.sha256(s.params["w"].tobytes()).hexdigest())
"""

try:
    import numpy
except ImportError:
    numpy = None


@unittest.skipIf(numpy is None, "no numpy")
class KeepersTest(unittest.TestCase):

    def setUp(self):
        self.env = dict(os.environ)
        for name, path in _PROGRAMS.items():
            self.env.setdefault(name, os.path.join(_ROOT, path))

    def train(self, at_steps=()):
        """`at_steps`: {step: arguments of restart-daemon}, each before another
        gate. The digests."""
        with tempfile.TemporaryDirectory(prefix="lab-test-") as folder:
            env = dict(self.env, BALLAST_LAB_DIR=folder)
            if at_steps:
                env["GATES"] = folder
            lab = subprocess.Popen(
                [sys.executable, "-B", _LAB, "run", "--nodes", "2", "--workers",
                 "1", "--keepers", "--", sys.executable, "-c", _WORKER],
                env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                text=True)
            try:
                lines = []
                for line in lab.stdout:
                    lines.append(line)
                    for step, arguments in dict(at_steps).items():
                        if line == "[rank 0] step %d\n" % step:
                            subprocess.run(
                                [sys.executable, "-B", _LAB, "restart-daemon",
                                 "--lab", self.lab_id(lines), *arguments],
                                env=env, check=True, timeout=_SECONDS)
                            self.open_gate(folder, step)
                output = "".join(lines)
                self.assertEqual(lab.wait(_SECONDS), 0, output)
            finally:
                lab.terminate()
                lab.wait(_SECONDS)
                lab.stdout.close()
        digests = re.findall(r"\[rank \d\] digest (\w+)", output)
        self.assertEqual(len(digests), 2, output)
        self.assertEqual(output.count("starting it again"), len(at_steps))
        return set(digests)

    @staticmethod
    def open_gate(folder, step):
        """The next one, and after the last all that are left."""
        first = (step // 6 + 1) * 6
        for gate in range(first, 31 if first == 18 else first + 1):
            with open(os.path.join(folder, "gate-%d" % gate), "w"):
                pass

    @staticmethod
    def lab_id(lines):
        return re.search(r"lab: lab (\w+),", "".join(lines)).group(1)

    def test_jobs_go_on_under_other_daemons(self):  # I20
        calm = self.train()
        self.assertEqual(len(calm), 1)
        self.assertEqual(
            self.train({3: ["--kill", "0"], 9: ["1"], 15: ["--kill", "1"]}),
            calm)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
