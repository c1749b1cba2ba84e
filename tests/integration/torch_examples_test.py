"""The examples run and show what the guide says, the two-line diff among
them."""

import difflib
import os
import re
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


def read(*path):
    with open(os.path.join(_EXAMPLES, *path), encoding="utf-8") as stream:
        return stream.read()


class ExamplesTest(lab.TestCase):

    def setUp(self):
        super().setUp()
        scratch = tempfile.TemporaryDirectory(prefix="ballast-it-", dir="/tmp")
        self.addCleanup(scratch.cleanup)
        self.env = dict(os.environ, BALLAST_LAB_DIR=scratch.name)
        self.env.pop("BALLAST_ADDRESS", None)

    def run_it(self, *command, env=None):
        done = subprocess.run(
            [sys.executable, *command], env=env or self.env,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=3 * lab.PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def launch(self, script, *arguments, workers=2):
        return self.run_it("-m", "ballast.run", "--workers", str(workers),
                           os.path.join(_EXAMPLES, script), *arguments)

    def losses(self, output, rank=0):
        return [float(text) for text in re.findall(
            r"rank %d step \d+ loss ([0-9.]+)" % rank, output)]

    def test_zero3_trains_what_does_not_fit(self):
        gathered = self.launch("zero3.py", "--steps", "3")
        resident = self.launch("zero3.py", "--steps", "3", "--resident")
        losses = re.findall(r"step \d+: loss [0-9.]+", gathered)
        self.assertEqual(len(losses), 3)
        self.assertEqual(
            losses, re.findall(r"step \d+: loss [0-9.]+", resident))
        model, most, allowed = map(int, re.search(
            r"model (\d+) bytes, node held at most (\d+) of (\d+)",
            gathered).groups())
        self.assertLess(0, most)
        self.assertLessEqual(most, allowed)
        self.assertLess(allowed, model)

    def test_the_diff_in_the_guide_is_the_diff_of_the_files(self):
        lines = list(difflib.unified_diff(
            read("plain.py").splitlines(True),
            read("with_ballast.py").splitlines(True), "plain.py",
            "with_ballast.py", n=1))
        self.assertIn("".join(lines).rstrip(), read("..", "TORCH.md"))
        changed = [line for line in lines
                   if line[0] in "+-" and line[:3] not in ("+++", "---")]
        self.assertEqual(len([c for c in changed if c[0] == "+"]), 2)
        self.assertEqual(len([c for c in changed if c[0] == "-"]), 1)

    @unittest.skipIf(torch is None, "no torch")
    def test_two_lines(self):
        plain = self.losses(self.run_it(os.path.join(_EXAMPLES, "plain.py")))
        ours = self.losses(self.launch("with_ballast.py", workers=1))
        self.assertEqual(len(plain), 6)
        for one, other in zip(plain, ours):
            self.assertLess(abs(one - other), 1e-3)
        together = self.launch("with_ballast.py")
        for rank in range(2):
            losses = self.losses(together, rank)
            self.assertLess(losses[-1], 0.5 * losses[0])

    @unittest.skipIf(torch is None, "no torch")
    def test_lora(self):
        output = self.launch("lora.py")
        self.assertIn("137 KiB of weights shared by the node, 8 KiB of "
                      "gradients per worker", output)
        losses = [float(t) for t in re.findall(r"loss ([0-9.]+)", output)]
        self.assertLess(losses[-1], losses[0])

    def test_numpy_only(self):
        output = self.launch("numpy_only.py")
        for error in re.findall(r"largest error of w ([0-9.]+)", output):
            self.assertLess(float(error), 0.01)
        self.assertEqual(output.count("b = 0.5"), 2)

    @unittest.skipIf(torch is None or not torch.distributed.is_available(),
                     "no torchrun")
    def test_torchrun_restarts_all_workers(self):  # I20
        undisturbed = set(re.findall(r"rank \d+ saw .*",
                                     self.launch("resume.py")))
        daemon = self.start_daemon()
        env = dict(self.env, BALLAST_ADDRESS=daemon.address,
                   BALLAST_JOB="torchrun", OMP_NUM_THREADS="1")
        version = tuple(int(n) for n in re.findall(
            r"\d+", torch.__version__)[:2])
        flags = ["-r", "1", "-t", "1"] if version < (2, 0) else []
        output = self.run_it(
            "-m", "torch.distributed.run", *flags, "--nproc_per_node", "2",
            "--max_restarts", "1", "--master_port",
            str(lab.launch.free_port()),
            os.path.join(_EXAMPLES, "resume.py"), "--die-at", "4",
            "--die-rank", "1", env=env)
        # A rank whose gradients were in may find the step committed.
        for rank in range(2):
            self.assertRegex(output, r"goes on at step [45] \(rank %d\)" % rank)
        self.assertEqual(set(re.findall(r"rank \d+ saw .*", output)),
                         undisturbed)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
