"""The wheel installs into a fresh virtual environment, brings its libraries
under private names, and trains beside PyTorch and other users of protobuf."""

import glob
import os
import subprocess
import sys
import tempfile
import unittest

import lab

try:
    import torch
except ImportError:
    torch = None

_EXAMPLES = os.path.dirname(os.environ.get("BALLAST_TRAIN_GPT", "")) or "."
_RUN_TIME = ("linux-vdso", "ld-linux", "libc.", "libm.", "libstdc++",
             "libgcc_s", "libdl.", "librt.", "libpthread.", "libresolv.")
_BESIDE = """
import ctypes, ctypes.util, sys
theirs = [ctypes.util.find_library(name) for name in ("protobuf", "grpc++")]
for library in theirs:
    if library:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
try:
    import torch
except ImportError:
    pass
from ballast import _library
_library.load()
print(_library.find())
with open("/proc/self/maps") as maps:
    for path in sorted({line.split()[-1] for line in maps
                        if "libprotobuf" in line}):
        print("MAPPED", path)
"""


def wheel():
    given = os.environ.get("BALLAST_WHEEL")
    found = [given] if given else glob.glob(
        os.path.join(_EXAMPLES, "..", "ballast-*.whl"))
    return found[0] if found and os.path.exists(found[0]) else ""


@unittest.skipUnless(wheel(), "no wheel: build //client/python:wheel")
class WheelTest(lab.TestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.scratch = tempfile.TemporaryDirectory(prefix="ballast-it-",
                                                  dir="/tmp")
        cls.env = {k: v for k, v in os.environ.items() if k not in (
            "PYTHONPATH", "BALLAST_LIBRARY", "BALLAST_ADDRESS")}
        cls.env["BALLAST_LAB_DIR"] = cls.scratch.name
        venv = os.path.join(cls.scratch.name, "venv")
        cls.python = os.path.join(venv, "bin", "python")
        # numpy and torch come from the distribution.
        cls.call([sys.executable, "-m", "venv", "--system-site-packages",
                  venv])
        cls.call([cls.python, "-m", "pip", "install", "--quiet",
                  "--disable-pip-version-check", "--no-index", "--no-deps",
                  os.path.abspath(wheel())])

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()
        super().tearDownClass()

    @classmethod
    def call(cls, command):
        done = subprocess.run(command, env=cls.env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True,
                              cwd=cls.scratch.name, timeout=5 * lab.PATIENCE,
                              check=False)
        if done.returncode != 0:
            raise AssertionError(done.stdout)
        return done.stdout

    def library(self):
        return self.call([self.python, "-c", "from ballast import _library; "
                          "print(_library.find())"]).strip()

    def test_needs_nothing_but_the_run_time(self):
        library = self.library()
        self.assertIn(self.scratch.name, library)
        lines = self.call(["ldd", library]).splitlines()
        self.assertGreater(len(lines), 20)
        for line in lines:
            name = os.path.basename(line.split()[0])
            if not name.startswith(_RUN_TIME):
                self.assertIn("-ballast-", name)
                self.assertIn("ballast.libs", line)

    def test_exports_its_own_symbols_only(self):
        symbols = self.call(["nm", "-D", "--defined-only", self.library()])
        for line in symbols.splitlines():
            self.assertTrue(line.split()[-1].startswith("ballast_"), line)

    def test_loads_beside_other_users_of_protobuf(self):
        output = self.call([self.python, "-c", _BESIDE])
        mapped = [line for line in output.splitlines()
                  if line.startswith("MAPPED")]
        self.assertTrue([m for m in mapped if "ballast.libs" in m], output)
        self.assertTrue([m for m in mapped if "ballast.libs" not in m],
                        output)

    @unittest.skipIf(torch is None, "no torch")
    def test_trains(self):
        output = self.call([
            self.python, "-m", "ballast.run", "--workers", "2",
            os.path.abspath(os.path.join(_EXAMPLES, "with_ballast.py"))])
        self.assertIn("rank 1 step 60 loss", output)

    def test_the_doctor_finds_the_library(self):
        done = subprocess.run([self.python, "-m", "ballast.doctor"],
                              env=self.env, stdout=subprocess.PIPE,
                              text=True, cwd=self.scratch.name, check=False)
        self.assertRegex(done.stdout, r"ok +library +%s"
                         % self.scratch.name)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
