"""What PyTorch users do by mistake, each with the words it is told in."""

import sys
import tempfile
import unittest
import warnings

import lab

try:
    import torch
    from torch import nn
except ImportError:
    torch = None

if torch is not None and not lab.missing():
    import ballast
    import ballast.torch


def net(width=4):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 2))


@unittest.skipIf(torch is None, "no torch")
class Base(lab.TestCase):

    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon()

    def optimizer(self, trained, params=None, name="sgd", **options):
        arguments = dict(lr=0.1, job="job", address=self.daemon.address,
                         timeout=lab.PATIENCE)
        arguments.update(options)
        result = ballast.torch.Optimizer(
            trained.parameters() if params is None else params, name,
            **arguments)
        self.addCleanup(self.end, result)
        return result

    @staticmethod
    def end(optimizer):
        try:
            optimizer.close()
        except ballast.Error:
            pass

    def backward(self, model):
        model(torch.ones(3, 6, dtype=next(model.parameters()).dtype)
              ).float().pow(2).mean().backward()

    def assertRefused(self, parts, call, kind=None):
        return self.assertRaisesWith(kind or ballast.FailedPrecondition,
                                     parts, call)


class ConversionTest(Base):

    def test_optimizer_before_to_dtype(self):
        model = net()
        optimizer = self.optimizer(model, model=model)
        model.to(torch.bfloat16)
        for call in (lambda: model(torch.ones(3, 6)), optimizer.step):
            self.assertRefused(
                ["'0.weight' was given other memory",
                 "dtype torch.float32 then, torch.bfloat16 now",
                 "model.to()", "must come before"], call)

    def test_half_after_construction(self):
        model = net()
        optimizer = self.optimizer(model)
        model.half()
        self.assertRefused(["'g0.p0' was given other memory",
                            "torch.float16 now", ".half()"], optimizer.step)

    def test_there_and_back(self):
        model = net()
        optimizer = self.optimizer(model)
        model.double().float()
        self.assertRefused(["other memory", "same shape and dtype"],
                           optimizer.step)

    def test_data_is_assigned(self):
        model = net()
        optimizer = self.optimizer(model)
        model[0].weight.data = torch.zeros(4, 6)
        self.assertRefused(["other memory", "assignments to .data"],
                           optimizer.step)

    def test_channels_last_before(self):
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.assertRefused(
            ["'weight'", "channels_last order",
             "model.to(memory_format=torch.contiguous_format)"],
            lambda: self.optimizer(model, model=model),
            ballast.InvalidArgument)

    def test_channels_last_after(self):
        model = nn.Conv2d(3, 4, 3)
        optimizer = self.optimizer(model, model=model)
        model.to(memory_format=torch.channels_last)
        self.assertRefused(["'weight' was given other memory", "stride",
                            "channels_last"], optimizer.step)

    def test_channels_last_inputs_are_fine(self):
        model = nn.Conv2d(3, 4, 3)
        optimizer = self.optimizer(model, model=model)
        model(torch.ones(1, 3, 5, 5).to(
            memory_format=torch.channels_last)).sum().backward()
        optimizer.step()

    def test_float64(self):
        self.assertRefused(["'g0.p0' has dtype torch.float64",
                            "model.to(torch.float32)"],
                           lambda: self.optimizer(net().double()),
                           ballast.InvalidArgument)


class ModelTest(Base):

    def test_a_layer_is_replaced_later(self):
        model = net()
        optimizer = self.optimizer(model, model=model)
        model[2] = nn.Linear(4, 2)
        self.backward(model)
        self.assertRefused(["'2.weight' of the model is not the one",
                            "added or replaced"], optimizer.step)

    def test_a_layer_was_replaced_before(self):
        model = net()
        params = list(model.parameters())
        model[2] = nn.Linear(4, 2)
        self.assertRefused(["g0.p2", "(2, 4)", "is not in model="],
                           lambda: self.optimizer(model, params, model=model),
                           ballast.InvalidArgument)

    def test_requires_grad_is_toggled_later(self):
        for value in (False, True):
            model = net()
            model[0].weight.requires_grad_(not value)
            optimizer = self.optimizer(model)
            model[0].weight.requires_grad_(value)
            self.assertRefused(
                ["requires_grad of parameter 'g0.p0' was %s" % (not value),
                 "is %s now" % value], optimizer.step)
            optimizer.close()

    def test_in_place_edit(self):
        model = net()
        optimizer = self.optimizer(model)
        with torch.no_grad():
            model[0].weight.clamp_(-1, 1)
        self.assertRefused(["'g0.p0' was edited in place",
                            "optimizer.load_weights()"], optimizer.step)

    def test_two_optimizers_on_one_model(self):
        model = net()
        self.optimizer(model)
        self.assertRefused(
            ["'g0.p0' belongs to the optimizer of job job already",
             "one optimizer per model"],
            lambda: self.optimizer(model, job="other"))

    def test_two_objects_over_one_memory(self):  # I16
        model = net()
        twin = nn.Linear(6, 4)
        twin.weight.data = model[0].weight.data
        self.assertRefused(
            ["two objects over the same memory", "one Parameter"],
            lambda: self.optimizer(model, [*model.parameters(),
                                           *twin.parameters()]),
            ballast.InvalidArgument)

    def test_nothing_to_train(self):
        model = net().requires_grad_(False)
        self.assertRefused("no parameter has requires_grad",
                           lambda: self.optimizer(model),
                           ballast.InvalidArgument)
        self.assertRefused("params is empty",
                           lambda: self.optimizer(model, []),
                           ballast.InvalidArgument)
        self.assertRefused("not a module",
                           lambda: self.optimizer(model, model),
                           ballast.InvalidArgument)

    def test_a_sparse_gradient(self):
        model = nn.Embedding(5, 3, sparse=True)
        optimizer = self.optimizer(model, model=model)
        optimizer.zero_grad(set_to_none=True)
        model(torch.tensor([1])).sum().backward()
        self.assertRefused(["'weight' is torch.sparse_coo", "sparse=False"],
                           optimizer.step, ballast.InvalidArgument)

    @unittest.skipUnless(torch is not None
                         and torch.distributed.is_available(), "no Gloo")
    def test_also_wrapped_in_ddp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        torch.distributed.init_process_group(
            "gloo", init_method="file://%s/store" % scratch.name, rank=0,
            world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        parts = ["also wrapped in DistributedDataParallel", "without DDP"]
        wrapped = nn.parallel.DistributedDataParallel(net())
        self.assertRefused(parts, lambda: self.optimizer(wrapped))
        self.assertRefused(parts, lambda: self.optimizer(wrapped.module))
        del wrapped
        model = net()
        optimizer = self.optimizer(model, model=model)
        wrapped = nn.parallel.DistributedDataParallel(model)
        self.assertRefused(parts, optimizer.step)
        del wrapped


class ArgumentsTest(Base):

    def refused(self, parts, *arguments, kind=None, **options):
        model = net()
        self.assertRefused(
            parts, lambda: self.optimizer(model, *arguments, **options),
            kind or ballast.InvalidArgument)

    def test_optimizers(self):
        class Mine(torch.optim.SGD):
            pass
        self.refused(["Mine", "not one of torch.optim", "adamw"], name=Mine)
        self.refused("'rprop' is not one of", name=torch.optim.Rprop)
        self.refused("'lamb'", name="lamb")
        self.refused(["an object", "give its class"],
                     name=torch.optim.SGD(net().parameters(), lr=0.1))

    def test_hyperparameters(self):
        self.refused(["unknown key 'momentm'", "\"momentum\""], momentm=0.9)
        self.refused("lr must be", lr=-1)
        self.refused("amsgrad=True", name=torch.optim.Adam, amsgrad=True)
        self.refused("maximize=True", maximize=True)
        self.refused(["decoupled_weight_decay", "use AdamW"], name="adam",
                     decoupled_weight_decay=True)
        model = net()
        self.optimizer(model, name=torch.optim.Adam, foreach=True,
                       amsgrad=False)

    def test_groups(self):
        model = net()
        for group, parts in (
                ({"params": model.parameters(), "weigth_decay": 0},
                 ["'weigth_decay' in param group 0", "\"weight_decay\""]),
                ({"lr": 1}, "has no \"params\""),
                ({"params": [3]}, ["group 0, entry 0 is 3"])):
            self.assertRefused(
                parts, lambda g=group: self.optimizer(model, [g]),
                ballast.InvalidArgument)
        self.assertRefused(
            "param group 1 is empty",
            lambda: self.optimizer(model, [{"params": model.parameters()},
                                           {"params": []}]),
            ballast.InvalidArgument)
        self.assertRefused(
            "param groups 0 and 1 share a parameter",
            lambda: self.optimizer(model, [
                {"params": model[0].parameters()},
                {"params": model.parameters()}]), ballast.InvalidArgument)
        optimizer = self.optimizer(model, [
            {"params": model.parameters(), "name": "all", "mine": 3}])
        self.assertEqual(optimizer.param_groups[0]["mine"], 3)

    def test_a_value_goes_wrong_later(self):
        model = net()
        optimizer = self.optimizer(model)
        optimizer.param_groups[0]["lr"] = -1.0
        self.assertRefused(["param group 0: lr must be"], optimizer.step,
                           ballast.InvalidArgument)

    def test_what_comes_later(self):
        self.refused(["partition_nodes", "does not divide"],
                     exchange={"partition_nodes": 2})
        self.refused("secondary_partition: none needs model=",
                     exchange={"secondary_partition": "none"})
        self.refused(["strict", "true"], strict=False)

    def test_other_arguments(self):
        self.refused("buffers must be", buffers="all")
        self.refused("overlap=True needs model=", overlap=True)
        self.refused("is for overlap=True", backward_passes_per_step=2)
        self.refused("must be an integer >= 1", backward_passes_per_step=0)
        model = net()
        optimizer = self.optimizer(model)
        optimizer.loss_scale = 0
        self.assertRefused("loss_scale must be a finite number",
                           optimizer.step, ballast.InvalidArgument)


class RanksTest(Base):
    """Each rank is a thread."""

    def test_different_models(self):
        models = [net(4), net(5)]

        def rank(number):
            try:
                self.optimizer(models[number], model=models[number],
                               rank=number, world_size=2, timeout=5.0)
                return ""
            except ballast.InvalidArgument as error:
                return str(error)
            except ballast.DeadlineExceeded:
                return ""
        text = "".join(lab.run_ranks(2, rank))
        self.assertIn("0.weight", text)
        self.assertIn("5", text)

    def test_a_forgotten_step(self):  # I23
        models = [net(), net()]

        def rank(number):
            optimizer = self.optimizer(models[number], rank=number,
                                       world_size=2)
            if number == 1:
                return optimizer  # does not step
            self.backward(models[number])
            error = self.assertRefused(["rank 1"],
                                       lambda: optimizer.step(timeout=0.5),
                                       ballast.DeadlineExceeded)
            self.assertIn("during step 1", str(error))
            return optimizer
        first, second = lab.run_ranks(2, rank)
        # The same call goes on waiting, and what was pushed must stay.
        self.assertRefused("with another cursor",
                           lambda: first.step(cursor=b"x"),
                           ballast.InvalidArgument)
        done = lab.run_ranks(2, lambda r: (first, second)[r].step())
        self.assertEqual(done, [None, None])

    def test_gradients_edited_while_a_step_waits(self):
        models = [net(), net()]
        lab_world = lab.run_ranks(2, lambda number: self.optimizer(
            models[number], rank=number, world_size=2))
        optimizer = lab_world[0]
        self.assertRefused("rank 1", lambda: optimizer.step(timeout=0.3),
                           ballast.DeadlineExceeded)
        optimizer.zero_grad()
        self.assertRefused(["'g0.p0' was changed after it was pushed",
                            "zero_grad() only after step()"], optimizer.step)

    def test_a_job_name_in_use_by_another_layout(self):
        self.optimizer(net())
        self.assertRefused(["g0.p0"], lambda: self.optimizer(net(7)),
                           ballast.InvalidArgument)


class OverlapTest(Base):

    def test_a_second_backward_after_the_push(self):
        model = net()
        optimizer = self.optimizer(model, model=model, overlap=True)
        self.backward(model)
        self.assertRefused(
            ["a second time before step()", "backward_passes_per_step=2",
             "optimizer.step() first"], lambda: self.backward(model))

    def test_clipping_after_the_push(self):
        model = net()
        optimizer = self.optimizer(model, model=model, overlap=True)
        self.backward(model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        self.assertRefused(["was changed after it was pushed",
                            "gradient_clipping=",
                            "optimizer.clip_grad_norm_()",
                            "scaler.unscale_"], optimizer.step)

    def test_a_scripted_model(self):
        model = torch.jit.script(net())
        self.assertRefused("compiled or scripted",
                           lambda: self.optimizer(model, model=model,
                                                  overlap=True),
                           ballast.InvalidArgument)


if __name__ == "__main__":
    warnings.simplefilter("ignore", UserWarning)
    sys.exit(unittest.main(verbosity=2))
