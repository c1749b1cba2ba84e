"""What Session refuses before it looks for a daemon, and with which words."""

import os
import tempfile
import unittest

import numpy as np

from ballast import _names, _options, _tensors, errors, groups


class Refuses(unittest.TestCase):
    """assertRefused(code's class, parts of the text, call)."""

    def assertRefused(self, parts, call, kind=errors.InvalidArgument):
        with self.assertRaises(kind) as caught:
            call()
        for part in parts:
            self.assertIn(part, str(caught.exception))


class TensorsTest(Refuses):

    def test_takes_every_form(self):  # I4, I5
        specs = _tensors.parse_tensors({
            "a": np.zeros((2, 3), np.float32), "b": np.zeros((), np.float16),
            "c": (np.zeros(4, np.uint16), "bfloat16"),
            "d": np.float32(1.5), "e": np.zeros((0, 7), np.float32)})
        self.assertEqual([(s.name, s.shape, s.dtype) for s in specs], [
            ("a", (2, 3), "float32"), ("b", (), "float16"),
            ("c", (4,), "bfloat16"), ("d", (), "float32"),
            ("e", (0, 7), "float32")])

    def test_takes_shapes_without_values(self):
        specs = _tensors.parse_tensors({
            "a": ((2, 3), "bfloat16"), "b": ([], np.float32)})
        self.assertEqual([(s.shape, s.dtype, s.value) for s in specs],
                         [((2, 3), "bfloat16", None), ((), "float32", None)])

    def test_values_become_dense(self):
        transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
        spec = _tensors.parse_tensor("a", transposed)
        self.assertTrue(spec.value.flags.c_contiguous)
        np.testing.assert_array_equal(spec.value, transposed)

    def test_refuses_wrong_dtypes(self):
        parse = _tensors.parse_tensor
        self.assertRefused(["'w'", "float64", "astype"],
                           lambda: parse("w", np.zeros(2)))
        self.assertRefused(["uint16", "bfloat16"],
                           lambda: parse("w", np.zeros(2, np.uint16)))
        self.assertRefused(["uint16", "float32"], lambda: parse(
            "w", (np.zeros(2, np.float32), "bfloat16")))
        self.assertRefused(["int8"], lambda: parse("w", ((2,), "int8")))
        self.assertRefused([">f4"], lambda: parse(
            "w", np.zeros(2, ">f4")))

    def test_refuses_what_is_no_tensor(self):
        parse = _tensors.parse_tensor
        self.assertRefused(["float", "numpy array"], lambda: parse("w", 1.0))
        self.assertRefused(["shape"], lambda: parse("w", ((2, -1),
                                                          "float32")))
        self.assertRefused(["shape"], lambda: parse("w", ((2.5,),
                                                          "float32")))
        for bad in (1 << 63, (1 << 64) + 5, float("inf")):
            self.assertRefused(["64-bit"], lambda b=bad: parse(
                "w", ((b,), "float32")))
        self.assertRefused(["33 dimensions"], lambda: parse(
            "w", ((1,) * 33, "float32")))

    def test_refuses_names_outside_the_grammar(self):
        for name in ("", ".a", "a..b", "a//b", "a/", "a/.b", "é", "a b",
                     "x" * 256, 7):
            self.assertRefused(["tensor name"],
                               lambda n=name: _tensors.parse_tensor(
                                   n, np.zeros(1, np.float32)))

    def test_tied_tensors_are_registered_once(self):  # I16
        shared = np.ones((2, 3), np.float32)
        for other in (shared, shared.T, shared[:1]):
            self.assertRefused(
                ["'wte'", "'head'", "register it once"],
                lambda o=other: _tensors.parse_tensors({"wte": shared,
                                                        "head": o}))
        bits = np.ones(2, np.uint16)
        self.assertRefused(["share storage"], lambda: _tensors.parse_tensors({
            "a": (bits, "bfloat16"), "b": (bits, "bfloat16")}))
        empty = np.zeros(0, np.float32)
        _tensors.parse_tensors({"a": shared, "b": shared.copy(),
                                "c": shared[1:].copy(), "d": empty,
                                "e": empty})

    def test_values_for_all_or_none(self):
        self.assertRefused(
            ["'a'", "'b'"],
            lambda: _tensors.parse_tensors({
                "b": np.zeros(1, np.float32), "a": ((1,), "float32")}))
        self.assertRefused(["at least one"], lambda: _tensors.parse_tensors({}))


class GroupsTest(Refuses):

    NAMES = ["wte", "h.0.w", "h.0.bias", "h.1.bias"]

    def groups(self, entries, optimizer=None):
        name, values = groups.parse_optimizer(optimizer or {"name": "adamw"})
        return groups.parse_groups(values, entries, self.NAMES)

    def test_defaults_are_pytorchs(self):
        self.assertEqual(groups.parse_optimizer({"name": "adamw", "lr": 1})[1],
                         {"lr": 1.0, "betas": (0.9, 0.999), "eps": 1e-8,
                          "weight_decay": 1e-2})

    def test_first_match_wins_and_the_rest_is_group_0(self):
        result = self.groups([{"match": "h.0.*", "lr": 2},
                              {"match": ["*.bias"], "weight_decay": 0}])
        self.assertEqual([g["params"] for g in result], [
            ("wte",), ("h.0.w", "h.0.bias"), ("h.1.bias",)])
        self.assertEqual([g["lr"] for g in result], [1e-3, 2.0, 1e-3])
        self.assertEqual(result[2].flat(), {
            "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8,
            "weight_decay": 0.0})

    def test_a_pattern_without_match_is_an_error(self):  # I21
        self.assertRefused(["'*.bais'", "matches no tensor"],
                           lambda: self.groups([{"match": "*.bais"}]))
        self.assertRefused(["earlier groups"], lambda: self.groups(
            [{"match": "*.bias"}, {"match": "h.1.bias"}]))

    def test_unknown_keys_name_the_nearest(self):  # I21
        self.assertRefused(["'weight_decy'", "\"weight_decay\""],
                           lambda: groups.parse_optimizer(
                               {"name": "sgd", "weight_decy": 1}))
        self.assertRefused(["'momentum'", "param_groups[0]"],
                           lambda: self.groups([{"match": "*", "momentum": 1}]))
        group = self.groups([])[0]
        self.assertRefused(["'beta'", "\"betas\""],
                           lambda: group.__setitem__("beta", 1))

    def test_values_are_checked_when_they_change(self):
        group = self.groups([])[0]
        group["lr"] = np.float32(0.5)
        self.assertEqual(group["lr"], 0.5)
        for bad in (-1, float("nan"), float("inf"), "1", None):
            self.assertRefused(["lr"], lambda b=bad: group.__setitem__(
                "lr", b))
        self.assertRefused(["betas"], lambda: group.__setitem__(
            "betas", (0.9, 1.0)))
        self.assertRefused(["match"], lambda: group.__setitem__("match", "*"))
        self.assertRefused(["stay"], lambda: group.__delitem__("lr"))
        self.assertEqual(group["lr"], 0.5)

    def test_nesterov_needs_momentum(self):
        self.assertRefused(["nesterov", "momentum"], lambda: self.groups(
            [], {"name": "sgd", "nesterov": True}))
        self.groups([], {"name": "sgd", "nesterov": True, "momentum": 0.9})

    def test_values_of_the_daemon_come_back(self):
        group = self.groups([])[0]
        flat = dict(group.flat(), lr=0.25, beta2=0.5)
        group.take(flat)
        self.assertEqual((group["lr"], group["betas"]), (0.25, (0.9, 0.5)))

    def test_every_optimizer_has_its_own_keys(self):
        _, adagrad = groups.parse_optimizer({"name": "adagrad", "lr_decay": 1})
        self.assertEqual(adagrad, {
            "lr": 0.01, "lr_decay": 1.0, "weight_decay": 0.0, "eps": 1e-10,
            "initial_accumulator_value": 0.0})
        _, lion = groups.parse_optimizer({"name": "lion"})
        self.assertEqual(lion, {"lr": 1e-4, "betas": (0.9, 0.99),
                                "weight_decay": 0.0})
        self.assertRefused(["eps", "lion"], lambda: groups.parse_optimizer(
            {"name": "lion", "eps": 1e-8}))

    def test_unknown_optimizer(self):
        self.assertRefused(["'lamb'", "sgd, adam, adamw, lion, adagrad"],
                           lambda: groups.parse_optimizer({"name": "lamb"}))
        self.assertRefused(["adamw"], lambda: groups.parse_optimizer(
            {"name": ["sgd"]}))
        self.assertRefused(["lr"], lambda: groups.parse_optimizer(
            {"name": "sgd", "lr": 10**400}))
        self.assertRefused(["\"name\""], lambda: groups.parse_optimizer({}))


class OptionsTest(Refuses):

    TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1",
                "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}

    def test_topology_from_torchrun(self):  # I8
        self.assertEqual(_options.topology(self.TORCHRUN), {
            "rank": 5, "world_size": 8, "local_rank": 1,
            "local_world_size": 4, "node_rank": 1})

    def test_topology_defaults_to_one_rank(self):
        self.assertEqual(_options.topology({}), {
            "rank": 0, "world_size": 1, "local_rank": 0,
            "local_world_size": 1, "node_rank": 0})

    def test_arguments_come_before_environment(self):
        got = _options.topology(self.TORCHRUN, rank=6, local_rank=2)
        self.assertEqual((got["rank"], got["local_rank"]), (6, 2))

    def test_topology_must_fit_together(self):
        topology = _options.topology
        self.assertRefused(["rank 4", "[0, 4)"],
                           lambda: topology({}, rank=4, world_size=4))
        self.assertRefused(["does not divide"], lambda: topology(
            {}, world_size=4, local_world_size=3))
        self.assertRefused(["do not fit"], lambda: topology(
            self.TORCHRUN, rank=6))
        self.assertRefused(["RANK", "'x'"], lambda: topology({"RANK": "x"}))

    def test_job_names(self):
        self.assertEqual(_options.job_name("a.b-c_1", {}), "a.b-c_1")
        self.assertEqual(_options.job_name(None, {
            "BALLAST_JOB": "x", "TORCHELASTIC_RUN_ID": "y"}), "x")
        self.assertEqual(_options.job_name(None, {
            "TORCHELASTIC_RUN_ID": "y"}), "y")
        self.assertRefused(["has no name"], lambda: _options.job_name(
            None, {"TORCHELASTIC_RUN_ID": "none"}))
        for bad in ("", "-a", "a/b", "a..b", "x" * 64, 3):
            self.assertRefused(["is not a name"],
                               lambda b=bad: _options.job_name(b, {}))

    def test_token_comes_from_a_file(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "token")
            with open(path, "w") as stream:
                stream.write("secret\n")
            env = {"BALLAST_TOKEN_FILE": path}
            self.assertEqual(_options.token(None, env), "secret")
            self.assertEqual(_options.token("mine", env), "mine")
        self.assertEqual(_options.token(None, {}), "")
        self.assertRefused([path], lambda: _options.token(None, env),
                           errors.PermissionDenied)
        for bad in ("x" * 4097, b"\xff", "\udc80", 7):
            self.assertRefused(["UTF-8", "4096"],
                               lambda b=bad: _options.token(b, {}))

    def test_addresses(self):
        self.assertEqual(_options.address(None, {}), _options.DEFAULT_ADDRESS)
        self.assertEqual(_options.address(None, {"BALLAST_ADDRESS": "/a"}),
                         "/a")
        for good in ("unix:///a", "unix:/a", "/a"):
            self.assertEqual(_options.address(good, {}), good)
        for bad in ("tcp://1.2.3.4:5", "foo", "unix:a", "h:1", 7):
            self.assertRefused(["address", "unix:///"],
                               lambda b=bad: _options.address(b, {}))
        self.assertEqual(_options.coordinator("h:1", {}), "h:1")
        for bad in ("h", ":1", "h:x", "h:0", "h:65536", 7):
            self.assertRefused(["host:port"],
                               lambda b=bad: _options.coordinator(b, {}))

    def test_coordinator_of_torchrun(self):
        def found(master, nodes=2, argument=None, **env):
            return _options.coordinator(
                argument, {"MASTER_ADDR": master, **env}, nodes)
        self.assertEqual(found("node-0"), "node-0:7470")
        self.assertEqual(found("fd00::1"), "[fd00::1]:7470")
        self.assertEqual(found("node-0", nodes=1), "")
        self.assertEqual(found("", 2), "")
        for loopback in ("localhost", "127.0.0.1", "::1"):
            self.assertEqual(found(loopback), "")
        self.assertEqual(found("node-0", argument="h:1"), "h:1")
        self.assertEqual(found("node-0", BALLAST_COORDINATOR="h:2"), "h:2")

    def test_seconds(self):
        for bad in (0, -1, "1", None, float("nan"), True):
            self.assertRefused(["timeout"], lambda b=bad: _options.seconds(
                b, "timeout"))
        self.assertRefused(["exact"], lambda: _options.exchange(""))

    def test_exchange_policies_become_one_text(self):
        self.assertEqual(_options.exchange("zeropp"), "zeropp")
        self.assertEqual(_options.exchange({}), "exact")
        self.assertEqual(
            _options.exchange({
                "weights": {"codec": "int8", "block": 256},
                "gradients": {"error_feedback": False},
                "max_relative_error": None, "preset": "zeropp",
                "overrides": [{"match": "*.b", "codec": "none"}]}),
            "zeropp weights.codec=int8 weights.block=256 "
            "gradients.error_feedback=false max_relative_error=null "
            "override:*.b=none")
        for bad in (3, {"weights": {"codec": "a b"}}, {"seed": "1=2"},
                    {"overrides": [{"match": "a"}]}, {"preset": ""}):
            self.assertRefused(["exchange"],
                               lambda b=bad: _options.exchange(b))


class NamesTest(Refuses):

    def test_trainable_patterns_keep_order_and_must_match(self):
        names = ["b", "a.w", "a.b"]
        self.assertEqual(_names.matching(["a.*", "b"], names, "t"), names)
        self.assertRefused(["'A.*'", "nearest"],
                           lambda: _names.matching(["A.*"], names, "t"))
        self.assertRefused(["pattern"], lambda: _names.patterns([], "t"))
        self.assertRefused(["pattern"], lambda: _names.patterns([1], "t"))


if __name__ == "__main__":
    unittest.main()
