"""What travels in a PyTorch rank's cursor comes back as it was."""

import collections
import sys
import unittest

try:
    import torch
except ImportError:
    print("SKIP pack_test: no torch")
    sys.exit(0)

from ballast import errors
from ballast.torch import _pack


class PackTest(unittest.TestCase):

    def round_trip(self, value):
        return _pack.loads(_pack.dumps(value))

    def test_plain_values(self):
        value = {"none": None, "flag": True, "int": 1 << 80, "text": "ü",
                 "float": 0.1, "inf": float("inf"), "bytes": b"\0\xff",
                 "list": [1, [2, (3, 4)], {}], "tuple": (0.9, 0.999),
                 3: "number as key", (1, 2): "tuple as key"}
        again = self.round_trip(value)
        self.assertEqual(again, value)
        self.assertIs(type(again["tuple"]), tuple)
        self.assertIs(type(again["list"][1]), list)
        self.assertEqual(repr(self.round_trip(-0.0)), "-0.0")

    def test_counters_stay_counters(self):  # MultiStepLR's milestones
        again = self.round_trip(collections.Counter([3, 3, 5]))
        self.assertIs(type(again), collections.Counter)
        self.assertEqual(again[3], 2)

    def test_tensors(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16,
                      torch.int64, torch.bool, torch.uint8):
            for shape in ((), (0, 3), (2, 3)):
                tensor = torch.ones(shape).to(dtype)
                again = self.round_trip({"t": tensor, "b": b"x"})
                self.assertEqual((again["t"].dtype, again["t"].shape),
                                 (dtype, tensor.shape))
                self.assertTrue(torch.equal(again["t"], tensor))
                self.assertEqual(again["b"], b"x")

    def test_schedulers_of_pytorch(self):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))],
                                    lr=1.0, momentum=0.9)
        rates = torch.optim.lr_scheduler
        for scheduler in (rates.MultiStepLR(optimizer, [2, 4]),
                          rates.OneCycleLR(optimizer, 1.0, total_steps=9),
                          rates.CosineAnnealingLR(optimizer, 5),
                          rates.ReduceLROnPlateau(optimizer)):
            state = {k: v for k, v in scheduler.state_dict().items()
                     if not callable(v)}
            self.assertEqual(self.round_trip(state), state)

    def test_what_it_cannot_carry_is_named(self):
        with self.assertRaises(errors.InvalidArgument) as caught:
            _pack.dumps({"a": [1, {"b": object()}]})
        self.assertIn("state['a'][1]['b'] is a object",
                      str(caught.exception))

    def test_anything_else_is_refused(self):  # I27
        good = _pack.dumps({"t": torch.ones(4), "n": [1, 2]})
        bad = [b"", b"\1", b"\xff\xff\xff\xff", b"\2\0\0\0[]",
               good[:-1], good[:8], b"\4\0\0\0true"[:6]]
        for data in bad:
            with self.assertRaises(errors.InvalidArgument):
                _pack.loads(data)
        for index in range(len(good)):  # nothing but that error or a value
            damaged = bytearray(good)
            damaged[index] ^= 0x15
            try:
                _pack.loads(bytes(damaged))
            except errors.InvalidArgument:
                pass


if __name__ == "__main__":
    unittest.main()
