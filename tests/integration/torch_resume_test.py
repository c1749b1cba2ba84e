"""A PyTorch worker is killed, detached or told to repeat a step: the run ends
with the bits of an undisturbed one."""

import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

import lab

try:
    import torch
    from torch import nn
except ImportError:
    torch = None

if torch is not None and not lab.missing():
    import ballast
    import ballast.torch

_STEPS = 8

_LEAVER = """
import sys, torch, ballast.torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = ballast.torch.Optimizer(model.parameters(), "sgd", lr=0.1)
print("first", optimizer.open_step, optimizer.resumed, flush=True)
turns = (optimizer.steps(int(sys.argv[2])) if sys.argv[1] == "steps"
         else range(int(sys.argv[2])))
for _ in turns:
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if sys.argv[1] == "raises":
    raise ValueError("on purpose")
"""


# Rank 1 hands over step 4 and is killed; rank 0 waits with its own until the
# replacement computes the step.
_DIES_HANDED_OVER = """
import os, signal, time
if "RANK" in os.environ:
    import ballast
    real = ballast.Session.step
    # By job, which ballast.run names by its process.
    mark = os.path.join(os.environ["BALLAST_LAB_DIR"],
                        os.environ["BALLAST_JOB"])

    def step(self, *arguments, **named):
        if self.open_step == 4 and self.rank == 0:
            while not os.path.exists(mark):
                time.sleep(0.01)
        if self.open_step == 4 and self.rank == 1:
            if self.step_is_given:
                open(mark, "w").close()
            else:
                try:
                    real(self, *arguments, **{**named, "timeout": 1.0})
                except ballast.DeadlineExceeded:
                    os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *arguments, **named)
    ballast.Session.step = step
"""


@unittest.skipIf(torch is None, "no torch")
class KillTest(lab.TestCase):

    def setUp(self):
        super().setUp()
        scratch = tempfile.TemporaryDirectory(prefix="ballast-it-", dir="/tmp")
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name
        self.script = os.path.join(
            os.path.dirname(os.environ["BALLAST_TRAIN_GPT"]), "resume.py")

    def run_it(self, *options):
        env = dict(os.environ, BALLAST_LAB_DIR=self.directory)
        env.pop("BALLAST_ADDRESS", None)
        done = subprocess.run(
            [sys.executable, "-m", "ballast.run", "--workers", "2",
             "--max-restarts", "1", self.script, "--steps", str(_STEPS),
             *options], env=env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=5 * lab.PATIENCE,
            check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def ends(self, output):
        """Of each rank: steps it saw, digest of its weights and buffers."""
        return sorted(re.findall(
            r"rank (\d+) saw (\d+) steps, digest ([0-9a-f]{64})", output))

    def test_sigkill_changes_no_bit(self):  # I20
        undisturbed = self.ends(self.run_it())
        self.assertEqual(len(undisturbed), 2)
        for where, extra in (("backward", []), ("committed", []),
                             ("forward", ["--overlap"]),
                             ("backward", ["--overlap"])):
            with self.subTest(where=where, extra=extra):
                output = self.run_it("--die-at", "4", "--die-rank", "1",
                                     "--die-where", where, *extra)
                self.assertIn("was ended by SIGKILL", output)
                self.assertRegex(output, r"goes on at step [45] \(rank 1\)")
                self.assertEqual(self.ends(output), undisturbed)

    def test_sigkill_of_who_gave_its_step(self):  # I20
        undisturbed = self.ends(self.run_it())
        for options in ([], ["--overlap"]):
            with self.subTest(options):
                output = self.run_with(_DIES_HANDED_OVER, *options)
                self.assertIn("was ended by SIGKILL", output)
                self.assertRegex(
                    output, r"goes on at step 4 \(rank 1\); its former worker")
                self.assertEqual(self.ends(output), undisturbed)

    def test_lost_randomness_would_be_seen(self):  # negative control
        undisturbed = self.ends(self.run_it())
        output = self.run_with("import ballast.torch._state as s\n"
                               "s._set_random_state = lambda state: None\n",
                               "--die-at", "4", "--die-rank", "1")
        self.assertNotEqual(self.ends(output), undisturbed)

    def run_with(self, start, *options):
        """Python runs `start` first, in every process."""
        with open(os.path.join(self.directory, "sitecustomize.py"),
                  "w") as stream:
            stream.write(start)
        with unittest.mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(
                [self.directory, os.environ["PYTHONPATH"]])):
            return self.run_it(*options)


def build():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(),
                         nn.Dropout(0.25), nn.Linear(16, 3))


@unittest.skipIf(torch is None, "no torch")
class GoOnTest(lab.TestCase):

    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon()

    def optimizer(self, model, **options):
        return ballast.torch.Optimizer(model.parameters(), "adamw", **dict(
            dict(model=model, lr=0.01, job="job", timeout=lab.PATIENCE,
                 address=self.daemon.address), **options))

    def train(self, model, optimizer, scheduler, steps, fails_at=0):
        for step in optimizer.steps(steps):
            loss = model(torch.randn(8, 6)).pow(2).mean()
            loss.backward()
            if step == fails_at:
                fails_at = 0
                optimizer._state.encode = self.fail_once(optimizer)
            try:
                optimizer.step(cursor=b"after %d" % step)
            except ballast.Aborted:
                continue
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()

    @staticmethod
    def fail_once(optimizer):
        """As if the job had gone on in another generation."""
        original = optimizer._state.encode

        def encode(user):
            optimizer._state.encode = original
            optimizer._is_repeat = True
            optimizer._forget()
            optimizer.session._steps_tried += 1
            raise ballast.Aborted("step was aborted", optimizer.open_step)
        return encode

    def digest(self, model):
        return [v.clone() for _, v in sorted(model.state_dict().items())]

    def undisturbed(self):
        model = build()
        optimizer = self.optimizer(model, job="undisturbed")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        torch.manual_seed(9)
        self.train(model, optimizer, scheduler, _STEPS)
        optimizer.close()
        return self.digest(model)

    def assertEnds(self, model, expected):
        for ours, theirs in zip(self.digest(model), expected):
            self.assertTrue(torch.equal(ours, theirs))

    def test_all_leave_and_come_again(self):  # as torchrun restarts them
        expected = self.undisturbed()
        for start, stop in ((0, 3), (3, 4), (4, _STEPS)):
            model = build()
            optimizer = self.optimizer(model)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            self.assertEqual(optimizer.track(scheduler), start > 0)
            self.assertEqual(optimizer.resumed, start > 0)
            self.assertEqual(optimizer.open_step, start + 1)
            self.assertEqual(optimizer.cursor,
                             b"after %d" % start if start else b"")
            torch.manual_seed(77 if start else 9)  # 77: whatever happened
            self.train(model, optimizer, scheduler, stop)
            optimizer.detach()
        self.assertEnds(model, expected)

    def test_a_repeated_step_starts_as_it_did(self):  # I20
        expected = self.undisturbed()
        model = build()
        optimizer = self.optimizer(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        optimizer.track(scheduler)
        torch.manual_seed(9)
        self.train(model, optimizer, scheduler, _STEPS, fails_at=4)
        optimizer.close()
        self.assertEnds(model, expected)

    def test_a_scheduler_that_is_stepped_otherwise(self):
        model = build()
        optimizer = self.optimizer(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        optimizer.track(scheduler)
        self.assertRaisesWith(
            ballast.FailedPrecondition,
            ["'0' was stepped 0 times", "per_step=False"],
            lambda: self.train(model, optimizer, None, 3))
        optimizer.close()

    def test_state_that_nobody_asks_for_is_told(self):
        model = build()
        optimizer = self.optimizer(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        optimizer.track(scheduler, name="rate")
        self.train(model, optimizer, scheduler, 2)
        optimizer.detach()
        again = self.start_worker(self.daemon, """
import torch, ballast.torch
model = torch.nn.Sequential(
    torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(),
    torch.nn.Dropout(0.25), torch.nn.Linear(16, 3))
o = ballast.torch.Optimizer(model.parameters(), "adamw", lr=0.01, model=model)
for step in o.steps(3):
    model(torch.ones(8, 6)).sum().backward()
    o.step()
o.close()
""")
        again.expect("committed state of rate is not used")
        self.assertEqual(again.finish()[0], 0)

    def test_too_much_for_a_cursor_is_refused(self):
        model = nn.Sequential(nn.Linear(6, 3))
        model.register_buffer("table", torch.zeros(20000))
        optimizer = self.optimizer(model)
        model.table.add_(1)
        optimizer.zero_grad()
        self.assertRaisesWith(
            ballast.ResourceExhausted,
            ["at most 65536", "buffers: 800", "buffers=\"local\""],
            optimizer.step)
        optimizer.close()
        optimizer = self.optimizer(model, buffers="local")
        optimizer.step()
        optimizer.close()

    def test_how_a_script_ends(self):
        def leave(*arguments):
            worker = self.start_worker(self.daemon, _LEAVER, *arguments)
            first = worker.expect("first")
            return first, worker.finish()[1]
        first, output = leave("loop", 3)
        self.assertEqual(first, "first 1 False")
        self.assertIn("job job is held after step 3", output)
        first, output = leave("raises", 1)
        self.assertEqual(first, "first 4 True")
        self.assertIn("held after step 4", output)
        first, output = leave("steps", 6)
        self.assertEqual(first, "first 5 True")
        self.assertNotIn("held", output)
        self.assertEqual(leave("steps", 1)[0], "first 1 False")


_GIVEN = 3  # the step in which the first life ends


@unittest.skipIf(torch is None, "no torch")
class GivenStepTest(lab.TestCase):
    """A worker leaves after it has handed its step over; its replacement is
    in the middle of that step's forward when it commits, and its weights are
    published."""

    def scene(self, disturbed, who=0, passes=1, **options):
        """Losses and final state of rank `who`."""
        daemon = self.start_daemon()
        start = {step: threading.Event() for step in range(1, _STEPS + 1)}
        done = {step: threading.Event() for step in range(1, _STEPS + 1)}
        # Building seeds the generator of the process: one after the other.
        models = [build() for _ in range(3)]
        other = lab.in_background(self.accompany, models.pop(), daemon,
                                  1 - who, passes, start, done, options)
        losses = []

        def live(last):
            model = models.pop()
            optimizer = self.optimizer(model, daemon, who, options)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            optimizer.track(scheduler)
            torch.manual_seed(9)
            given = optimizer.session.step_is_given
            self.assertEqual(given, last > _GIVEN and disturbed)
            for step in optimizer.steps(last):
                if given:  # of the first turn

                    def commit(*_unused, step=step):
                        start[step].set()
                        self.assertTrue(done[step].wait(lab.PATIENCE))
                    hook = model[0].register_forward_pre_hook(commit)
                elif last > _GIVEN or step < _GIVEN:
                    start[step].set()
                for _ in range(passes):
                    loss = model(torch.randn(8, 6)).pow(2).mean()
                    loss.backward()
                    losses.append(loss.item())
                if step == last == _GIVEN:
                    with self.assertRaises(ballast.DeadlineExceeded) as late:
                        optimizer.step(timeout=1, cursor=b"first life")
                    self.assertNotIn("rank %d" % who, str(late.exception))
                    losses[-passes:] = []  # to be told by the second life
                    optimizer.detach()
                    return
                optimizer.step(cursor=b"at %d" % step)
                if given:
                    hook.remove()
                    given = False
                    self.assertEqual(optimizer.cursor, b"first life")
                optimizer.zero_grad()
                scheduler.step()
            state = [v.clone() for _, v in sorted(model.state_dict().items())]
            optimizer.close()
            return state

        if disturbed:
            live(_GIVEN)
        state = live(_STEPS)
        other()
        return losses, state

    def optimizer(self, model, daemon, rank, options):
        return ballast.torch.Optimizer(
            model.parameters(), "adamw", model=model, lr=0.01, job="job",
            timeout=lab.PATIENCE, address=daemon.address, rank=rank,
            world_size=2, **options)

    def accompany(self, model, daemon, rank, passes, start, done, options):
        """The other rank: uses no random number, they are the process's."""
        model[3].p = 0.0
        optimizer = self.optimizer(model, daemon, rank, options)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in optimizer.steps(_STEPS):
            self.assertTrue(start[step].wait(2 * lab.PATIENCE))
            for _ in range(passes):
                images = torch.linspace(-1, step, 48).view(8, 6)
                model(images).pow(2).mean().backward()
            optimizer.step()
            optimizer.session.wait()
            done[step].set()
            optimizer.zero_grad()
            scheduler.step()
        optimizer.close()

    def test_it_ends_as_if_nobody_had_left(self):  # I20
        for options in ({}, {"who": 1}, {"who": 1, "buffers": "cursor"},
                        {"overlap": True},
                        {"overlap": True, "passes": 2,
                         "backward_passes_per_step": 2}):
            with self.subTest(options):
                losses, state = self.scene(False, **options)
                again, ends = self.scene(True, **options)
                self.assertEqual(losses, again)
                for ours, theirs in zip(ends, state):
                    self.assertTrue(torch.equal(ours, theirs))

    def test_weights_that_change_would_be_seen(self):  # negative control
        losses, state = self.scene(False)
        with unittest.mock.patch.object(
                ballast.torch._weights.Weights, "_copy", lambda *_: None):
            again, ends = self.scene(True)
            self.assertNotEqual(losses, again)
            # What the first life committed counts nevertheless.
            self.assertTrue(all(map(torch.equal, ends, state)))
            with unittest.mock.patch.object(
                    ballast.torch._state.State, "adopt",
                    lambda self, _: self.committed(b"first life")):
                ends = self.scene(True)[1]
            self.assertFalse(all(map(torch.equal, ends, state)))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
