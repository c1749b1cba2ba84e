"""optimizer.load_weights(): the model's values become the job's."""

import sys
import unittest

import lab
import torch_case

try:
    import torch
except ImportError:
    torch = None

if torch is not None and not lab.missing():
    import ballast
    import ballast.torch

_TOLERANCE = 1e-6

net = torch_case.net


def train_one(model, optimizer, step):
    optimizer.zero_grad()
    generator = torch.Generator().manual_seed(step)
    model(torch.randn(8, 6, generator=generator)).pow(2).mean().backward()
    optimizer.step()


def state_of(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


@unittest.skipIf(torch is None, "no torch")
class LoadTest(lab.TestCase):

    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon()

    def optimizer(self, model, name="adamw", rank=0, world=2, **options):
        return ballast.torch.Optimizer(
            model.parameters(), name, model=model,
            address=self.daemon.address, timeout=lab.PATIENCE, rank=rank,
            world_size=world, **dict(dict(job="job", lr=0.01), **options))

    def assertSame(self, ours, theirs):
        self.assertEqual(set(ours), set(theirs))
        for name, value in theirs.items():
            self.assertTrue(torch.equal(ours[name], value), name)

    def assertNear(self, ours, theirs):
        for name, value in theirs.items():
            self.assertTrue(torch.allclose(ours[name], value, _TOLERANCE,
                                           _TOLERANCE), name)

    def plain(self, loads, kept=True):
        """What torch.optim.AdamW makes of the same training."""
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(1, 8):
            if step != loads:
                train_one(model, optimizer, step)
                continue
            model.load_state_dict(net(5).state_dict())
            if not kept:
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return state_of(model)

    def scene(self, loads, **options):
        """Both ranks train on the same data and load in one step."""
        models = [net(), net()]
        loaded = [net(5).state_dict(), net(6).state_dict()]
        reset_state = options.pop("reset_state", False)

        def rank(number):
            model = models[number]
            optimizer = self.optimizer(model, rank=number, **options)
            while optimizer.open_step < 8:
                step = optimizer.open_step
                if step != loads:
                    train_one(model, optimizer, step)
                    continue
                model.load_state_dict(loaded[number])
                optimizer.load_weights(reset_state=reset_state)
                self.assertTrue(optimizer.last_result.loaded)
                self.assertEqual(optimizer.open_step, loads + 1)
                self.assertEqual(optimizer.session.weight_version, loads)
                for name, value in model.named_parameters():
                    self.assertTrue(torch.equal(value, loaded[0][name]), name)
                self.assertFalse(torch.equal(
                    model[0].weight, loaded[1]["0.weight"]))  # the control
            state = state_of(model)
            optimizer.close()
            return state
        return lab.run_ranks(2, rank)

    def test_one_new_version_with_the_moments_that_were(self):  # I1
        expected = self.plain(4)
        for options in ({}, {"overlap": True}):
            with self.subTest(options):
                ours = self.scene(4, **options)
                self.assertNear(ours[0], expected)
                for name, _ in net().named_parameters():
                    self.assertTrue(torch.equal(ours[0][name], ours[1][name]))

    def test_a_rank_builds_no_net(self):  # its values would be any
        self.assertRaisesRegex(AssertionError, "before the threads",
                               lab.run_ranks, 1, lambda _: net())

    def test_with_new_moments_it_is_a_new_start(self):
        ours = self.scene(4, reset_state=True)[0]
        self.assertNear(ours, self.plain(4, kept=False))
        self.assertRaises(AssertionError, self.assertNear, ours,
                          self.plain(4))  # the control

    def test_before_the_first_step(self):
        model = net()
        optimizer = self.optimizer(model, world=1)
        model.load_state_dict(net(5).state_dict())
        optimizer.load_weights()
        self.assertEqual(optimizer.open_step, 1)
        self.assertTrue(torch.equal(model[0].weight, net(5)[0].weight))
        train_one(model, optimizer, 1)
        self.assertFalse(torch.equal(model[0].weight, net(5)[0].weight))

    def test_within_steps_it_takes_a_turns_number(self):
        model = net()
        optimizer = self.optimizer(model, world=1)
        seen = []
        for step in optimizer.steps(5):
            seen.append(step)
            if step == 3:
                model.load_state_dict(net(5).state_dict())
                optimizer.load_weights()
                continue
            train_one(model, optimizer, step)
        self.assertEqual(seen, [1, 2, 3, 4, 5])
        optimizer.close()

    def test_what_is_in_the_way_is_told(self):
        model = net()
        optimizer = self.optimizer(model, world=1, overlap=True)
        train_one(model, optimizer, 1)
        model(torch.ones(8, 6)).sum().backward()
        self.assertRaisesWith(ballast.FailedPrecondition, "call step() first",
                              optimizer.load_weights)
        optimizer.step()
        model.to(torch.float64)
        self.assertRaisesWith(ballast.FailedPrecondition,
                              "float32 then, torch.float64 now",
                              optimizer.load_weights)

    def test_a_frozen_parameter_cannot_change(self):
        model = net()
        model[0].requires_grad_(False)
        optimizer = self.optimizer(model, world=1)
        train_one(model, optimizer, 1)
        optimizer.load_weights()  # to what it is
        model.load_state_dict(net(5).state_dict())
        self.assertRaisesWith(ballast.FailedPrecondition,
                              ["\"0.weight\" is frozen"],
                              optimizer.load_weights)
        optimizer.load_weights(restart=True)
        self.assertTrue(torch.equal(model[0].weight, net(5)[0].weight))

    def test_a_step_of_another_rank_is_told(self):
        models = [net(), net()]

        def rank(number):
            optimizer = self.optimizer(models[number], rank=number)
            train_one(models[number], optimizer, 1)
            call = optimizer.load_weights if number else optimizer.step
            self.assertRaisesWith(ballast.InvalidArgument,
                                  "load is 0 on rank 0 but 1 on rank 1", call)
            # Told, both do the same: the old weights were left whole.
            optimizer.load_weights()
            optimizer.close()
            return state_of(models[number])
        ours = lab.run_ranks(2, rank)
        self.assertSame({k: v for k, v in ours[0].items() if "running" not in
                         k}, {k: v for k, v in ours[1].items()
                              if "running" not in k})

    def test_a_replacement_goes_on_from_loaded_weights_and_buffers(self):
        model = net()
        optimizer = self.optimizer(model, world=1)
        for step in optimizer.steps(2):
            train_one(model, optimizer, step)
        loaded = net(5)
        loaded(torch.ones(4, 6) * 3)
        model.load_state_dict(loaded.state_dict())
        optimizer.load_weights()
        optimizer.detach()
        again = net()
        optimizer = self.optimizer(again, world=1)
        self.assertEqual(optimizer.open_step, 4)
        self.assertSame(state_of(again), state_of(loaded))
        optimizer.close()

    def test_restart_begins_a_new_job(self):
        models = [net(), net()]
        loaded = [net(10 + number).state_dict() for number in range(2)]

        def rank(number):
            model = models[number]
            optimizer = self.optimizer(model, rank=number, overlap=True)
            for step in range(3):
                train_one(model, optimizer, step)
            model.load_state_dict(loaded[number])
            optimizer.load_weights(restart=True)
            self.assertEqual(optimizer.open_step, 1)
            for step in range(2):
                train_one(model, optimizer, step)
            state = state_of(model)
            optimizer.close()
            return state

        def undisturbed(number):
            model = fresh[number]
            optimizer = self.optimizer(model, job="other", rank=number)
            for step in range(2):
                train_one(model, optimizer, step)
            state = state_of(model)
            optimizer.close()
            return state

        # Rank 0's values count, moments are new: as if it began there.
        ours = lab.run_ranks(2, rank)
        fresh = [net(10), net(11)]
        theirs = lab.run_ranks(2, undisturbed)
        for name, _ in net().named_parameters():
            self.assertTrue(torch.equal(ours[0][name], theirs[0][name]))
            self.assertTrue(torch.equal(ours[1][name], theirs[0][name]))

    def test_restart_within_steps_is_refused(self):
        model = net()
        optimizer = self.optimizer(model, world=1)

        def loop():
            for step in optimizer.steps(4):
                train_one(model, optimizer, step)
                if step == 2:
                    optimizer.load_weights(restart=True)
        self.assertRaisesWith(ballast.FailedPrecondition,
                              "leave the loop and begin another", loop)
        seen = []
        for step in optimizer.steps(2):
            train_one(model, optimizer, step)
            seen.append(step)
        self.assertEqual(seen, [1, 2])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
