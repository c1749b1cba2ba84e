"""DeepSpeed configurations: a corpus, what becomes of each, and the words."""

import contextlib
import io
import json
import os
import tempfile
import unittest

from ballast import _deepspeed_rules, convert, deepspeed, errors

ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 0.001}}}


def zero(**values):
    return {**ADAMW, "zero_optimization": values}


# (name, configuration, world, local world, expected of the reading)
ACCEPTED = [
    ("bare", ADAMW, 1, 1, dict(
        optimizer="adamw", hyper={"lr": 0.001, "betas": (0.9, 0.999),
                                  "eps": 1e-8, "weight_decay": 0.0},
        overlap=False)),
    ("Adam is AdamW", {"optimizer": {"type": "Adam"}}, 1, 1,
     dict(optimizer="adamw")),
    ("Adam proper", {"optimizer": {"type": "Adam", "params": {
        "adam_w_mode": False, "bias_correction": True}}}, 1, 1,
     dict(optimizer="adam")),
    ("PyTorch's decay", {"optimizer": {"type": "AdamW", "params": {
        "torch_adam": True}}}, 1, 1,
     dict(hyper={"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8,
                 "weight_decay": 0.01})),
    ("SGD", {"optimizer": {"type": "SGD", "params": {
        "lr": 0.1, "momentum": 0.9}}}, 1, 1, dict(optimizer="sgd")),
    ("clipping", {**ADAMW, "gradient_clipping": 1}, 1, 1,
     dict(gradient_clipping=1.0)),
    ("stage 1", zero(stage=1), 8, 4, dict(overlap=False)),
    ("stage 2", zero(stage=2, overlap_comm=True, contiguous_gradients=True,
                     reduce_scatter=True, round_robin_gradients=False),
     8, 4, dict(overlap=True)),
    ("ZeRO++", zero(stage=3, zero_hpz_partition_size=4,
                    zero_quantized_weights=True,
                    zero_quantized_gradients=True), 8, 4,
     dict(exchange="zeropp", overlap=True)),
    ("qwZ", zero(stage=3, zero_hpz_partition_size=4,
                 zero_quantized_weights=True), 8, 4,
     dict(exchange={"weights": {"codec": "int8", "block": 256}})),
    ("qgZ", zero(stage=3, zero_hpz_partition_size=4,
                 zero_quantized_gradients=True), 8, 4,
     dict(exchange={"gradients": {"codec": "int4", "block": 128}})),
    ("MiCS, nodes of 4", zero(stage=3, mics_shard_size=8), 16, 4,
     dict(exchange={"preset": "exact", "partition_nodes": 2})),
    ("MiCS of one node", zero(stage=3, mics_shard_size=4,
                              mics_hierarchical_params_gather=True), 8, 4,
     dict(exchange={"preset": "exact", "partition_nodes": 1})),
    ("MiCS of all", zero(stage=3, mics_shard_size=8), 8, 4, {}),
    ("MiCS is off", zero(stage=2, mics_shard_size=-1), 8, 4, {}),
    ("MiCS and ZeRO++", zero(stage=3, mics_shard_size=4,
                             zero_hpz_partition_size=4,
                             zero_quantized_weights=True,
                             zero_quantized_gradients=True), 8, 4,
     dict(exchange={"preset": "zeropp", "partition_nodes": 1})),
    ("MiCS and qgZ", zero(stage=3, mics_shard_size=4,
                          zero_quantized_gradients=True), 8, 4,
     dict(exchange={"gradients": {"codec": "int4", "block": 128},
                    "partition_nodes": 1})),
    ("offload", zero(stage=2, offload_optimizer={
        "device": "cpu", "pin_memory": True}), 1, 1, {}),
    ("small buckets", zero(stage=2, reduce_bucket_size=5e5,
                           allgather_bucket_size=1e5), 1, 1,
     dict(bucket_bytes=400000)),
    ("large buckets", zero(stage=2, reduce_bucket_size=5e8), 1, 1, {}),
    ("what is off", {**ADAMW, "fp16": {"enabled": False, "loss_scale": 0},
                     "tensorboard": {"enabled": False},
                     "flops_profiler": {"enabled": False},
                     "prescale_gradients": False,
                     "gradient_predivide_factor": 1.0,
                     "communication_data_type": None}, 1, 1, {}),
]

# (name, configuration, world, local world, parts of the refusals)
REFUSED = [
    ("unknown key", {**ADAMW, "gradient_cliping": 1.0}, 1, 1,
     ["gradient_cliping", "unknown key", "\"gradient_clipping\""]),
    ("unknown inner key", zero(stage=1, reduce_bucket=1), 1, 1,
     ["zero_optimization.reduce_bucket", "reduce_bucket_size"]),
    ("stage 1 and qgZ", zero(stage=1, zero_quantized_gradients=True), 8, 4,
     ["zero_quantized_gradients", "stage 3 only, this is stage 1",
      "exchange=\"zeropp\""]),
    ("hpZ does not divide", zero(stage=3, zero_hpz_partition_size=3), 8, 4,
     ["zero_hpz_partition_size: 3", "does not divide the world size 8"]),
    ("plain stage 3", zero(stage=3), 8, 4,
     ["secondary_partition: none", "nearest: 4, the local world size"]),
    ("batch triple", {**ADAMW, "train_batch_size": 33,
                      "train_micro_batch_size_per_gpu": 4,
                      "gradient_accumulation_steps": 2}, 4, 4,
     ["micro batch 4 x accumulation 2 x world size 4", "nearest: 32"]),
    ("fp16", {**ADAMW, "fp16": {"enabled": True}}, 1, 1,
     ["fp16", "GPU", "nearest: bf16"]),
    ("Lamb", {"optimizer": {"type": "Lamb"}}, 1, 1,
     ["optimizer.type: 'Lamb'", "AdamW"]),
    ("no optimizer", {"train_batch_size": 1}, 1, 1,
     ["the update runs in the daemon"]),
    ("nvme", zero(stage=2, offload_optimizer={"device": "nvme"}), 1, 1,
     ["offload_optimizer.device: 'nvme'", "nearest: cpu"]),
    ("auto", {**ADAMW, "train_batch_size": "auto"}, 1, 1,
     ["train_batch_size: 'auto'", "the value itself"]),
    ("max_grad_norm", {"optimizer": {"type": "Adam", "params": {
        "max_grad_norm": 1.0}}}, 1, 1, ["gradient_clipping"]),
    ("LoCo", zero(stage=3, zero_hpz_partition_size=1, zeropp_loco_param={
        "err_beta": 0.8}), 1, 1, ["zeropp_loco_param", "error feedback"]),
    ("MiCS in stage 2", zero(stage=2, mics_shard_size=2), 2, 2,
     ["mics_shard_size: 2", "stage 3 only", "partition_nodes"]),
    ("MiCS does not divide", zero(stage=3, mics_shard_size=6), 16, 2,
     ["mics_shard_size: 6", "does not divide the world size 16"]),
    ("MiCS of half a node", zero(stage=3, mics_shard_size=2), 16, 4,
     ["mics_shard_size: 2", "whole nodes of 4 ranks", "nearest: 4"]),
    ("MiCS of nothing", zero(stage=3, mics_shard_size=0), 4, 4,
     ["mics_shard_size: 0", "does not divide"]),
    ("MiCS and another hpZ", zero(stage=3, mics_shard_size=4,
                                  zero_hpz_partition_size=2), 8, 4,
     ["zero_hpz_partition_size: 2", "once per node", "nearest: 4"]),
    ("scheduler", {**ADAMW, "scheduler": {"type": "OneCycle"}}, 1, 1,
     ["scheduler.type: 'OneCycle'", "WarmupLR", "lr_scheduler="]),
    ("scheduler's key", {**ADAMW, "scheduler": {
        "type": "WarmupLR", "params": {"warmup_steps": 3}}}, 1, 1,
     ["scheduler.params.warmup_steps", "\"warmup_num_steps\""]),
    ("old form", {**ADAMW, "zero_optimization": True}, 1, 1,
     ["must be an object"]),
    ("wrong type", {**ADAMW, "gradient_clipping": "1"}, 1, 1,
     ["gradient_clipping: '1'", "must be of type float"]),
    ("hyperparameter", {"optimizer": {"type": "AdamW", "params": {
        "lr": -1}}}, 1, 1, ["optimizer.params", "lr must be"]),
]


class ReadTest(unittest.TestCase):

    def test_what_is_accepted(self):
        for name, config, world, local, expected in ACCEPTED:
            with self.subTest(name):
                reading = deepspeed.read(config, world, local).check()
                for key, value in expected.items():
                    self.assertEqual(reading.arguments.get(key), value)

    def test_what_is_refused(self):
        for name, config, world, local, parts in REFUSED:
            with self.subTest(name):
                with self.assertRaises(errors.InvalidArgument) as caught:
                    deepspeed.read(config, world, local).check()
                for part in parts:
                    self.assertIn(part, str(caught.exception))

    def test_all_refusals_come_at_once(self):
        reading = deepspeed.read(zero(
            stage=3, stage3_max_live_parameters=1e9,
            stage3_prefetch_bucket_size=5e7, unknown=1), 8, 4)
        self.assertEqual(len(reading.refused), 4)

    def test_every_key_is_answered(self):  # I21: none is ignored
        for key in _deepspeed_rules.RULES:
            with self.subTest(key):
                config = dict(ADAMW)
                value = {"what": "is this"}
                if key.startswith("zero_optimization."):
                    config["zero_optimization"] = {key.split(".")[1]: value}
                else:
                    config[key] = value
                reading = deepspeed.read(config, 2, 1)
                said = [str(r) for r in reading.refused] + reading.changes
                self.assertTrue(any(key.split(".")[-1] in s for s in said),
                                said)

    def test_batch_triple(self):
        def batch(world, **values):
            reading = deepspeed.read({**ADAMW, **values}, world, world)
            return reading.check().micro_batch, reading.accumulation
        self.assertEqual(batch(4, train_batch_size=32), (8, 1))
        self.assertEqual(batch(4, train_batch_size=32,
                               train_micro_batch_size_per_gpu=2), (2, 4))
        self.assertEqual(batch(2, train_batch_size=32,
                               gradient_accumulation_steps=4), (4, 4))
        self.assertEqual(batch(2, gradient_accumulation_steps=3), (None, 3))

    def test_scheduler_defaults(self):
        reading = deepspeed.read({**ADAMW, "scheduler": {
            "type": "WarmupDecayLR", "params": {"total_num_steps": 50}}})
        self.assertEqual(reading.check().scheduler["params"], {
            "total_num_steps": 50, "warmup_min_lr": 0.0,
            "warmup_max_lr": 0.001, "warmup_num_steps": 1000,
            "warmup_type": "log"})


class ConvertTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = os.path.join(scratch.name, "ds.json")

    def convert(self, config, *arguments):
        with open(self.path, "w") as stream:
            json.dump(config, stream)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = convert.main([self.path, *arguments])
        return code, out.getvalue(), err.getvalue()

    def test_drops_what_changes_no_result(self):
        config = zero(stage=3, stage3_max_live_parameters=1e9,
                      zero_quantized_weights=True,
                      zero_quantized_gradients=True)
        code, out, err = self.convert(config, "--world-size", "8",
                                      "--local-world-size", "4")
        self.assertEqual(code, 0, err)
        self.assertIn("dropped: zero_optimization.stage3_max_live_parameters",
                      err)
        self.assertIn("dropped: zero_optimization.zero_hpz_partition_size",
                      err)
        own = json.loads(out)
        self.assertEqual(own["arguments"]["exchange"], "zeropp")
        reading = deepspeed.read(own, 8, 4).check()
        self.assertEqual(reading.arguments, own["arguments"])

    def test_names_what_has_no_equivalent(self):
        code, out, err = self.convert({"optimizer": {"type": "Lamb"}})
        self.assertEqual((code, out), (1, ""))
        self.assertIn("no equivalent: optimizer.type", err)

    def test_bad_files(self):
        with open(self.path, "w") as stream:
            stream.write("[1]")
        for path in (self.path, self.path + ".not-there"):
            with contextlib.redirect_stderr(io.StringIO()) as err:
                self.assertEqual(convert.main([path]), 1)
            self.assertIn("config", err.getvalue())

    def test_own_files_are_read_strictly(self):
        with self.assertRaises(errors.InvalidArgument) as caught:
            deepspeed.read({"ballast": 1, "argument": {}}).check()
        self.assertIn("\"arguments\"", str(caught.exception))

    def test_the_guide_has_the_table(self):
        here = os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(here, "..", "TORCH.md")) as stream:
            self.assertIn(_deepspeed_rules.table(), stream.read())


if __name__ == "__main__":
    unittest.main()
