"""The scalar reference (kernels/FORMAT.md) for tests: numpy over ctypes.

Other tests run a job in process with this module and compare its weights
with the daemon's, bit for bit:

    optimizer = reference.Optimizer(
        "adamw", [{"params": {"w": w0}, "lr": 1e-3}], gradient_clipping=1.0)
    for step in range(steps):
        optimizer.step({"w": [grad(step, rank) for rank in range(world)]})
    optimizer.weight("w")

bf16 tensors are `(uint16 array, "bfloat16")`, as in the ballast package.
The library is `libreference.so` of the build: in the tree around this file
(as in Bazel's runfiles), or where BALLAST_REFERENCE_LIBRARY says.
"""

import ctypes
import math
import os

import numpy as np

DTYPES = {"float32": 1, "bfloat16": 2, "float16": 3}
KINDS = {"sgd": 1, "adam": 2, "adamw": 3, "lion": 4, "adagrad": 5}
STORAGE = {"float32": np.float32, "bfloat16": np.uint16, "float16": np.float16}
RANGES = {"sym": 1, "clip16": 2}
ROUNDINGS = {"nearest": 1, "stochastic": 2}

_library = None


def _default_path():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    return os.environ.get("BALLAST_REFERENCE_LIBRARY",
                          os.path.join(root, "kernels", "libreference.so"))


def _prototypes():
    i64, u64, f64 = ctypes.c_int64, ctypes.c_uint64, ctypes.c_double
    p, i = ctypes.c_void_p, ctypes.c_int
    return {
        "scalars_bytes": (i, []),
        "limbs": (i, []),
        "mean": (i, [i, i, p, i64, p]),
        "norm2": (i, [p, i64, p]),
        "limbs_add": (None, [f64, p]),
        "limbs_value": (f64, [p]),
        "clip_factor": (ctypes.c_float, [f64, f64]),
        "scalars": (i, [i, p, i64, ctypes.c_float, p]),
        "step": (i, [i, p, i64, p, p, p, p, i, p]),
        "cast": (i, [p, i, i64, p]),
        "widen": (i, [p, i, i64, p]),
        "encoded_bytes": (i64, [u64, i64]),
        "encode": (i, [u64, u64, i64, i64, p, p]),
        "decode": (i, [u64, i64, p, p]),
        "decode_add": (i, [u64, i64, p, p]),
    }


def load(path=None):
    """Loads the library; called by itself with the default path."""
    global _library
    if _library is None or path is not None:
        _library = ctypes.CDLL(path or _default_path())
        for name, (result, arguments) in _prototypes().items():
            function = getattr(_library, "ballast_reference_" + name)
            function.restype, function.argtypes = result, arguments
    return _library


def _call(name, *arguments):
    return getattr(load(), "ballast_reference_" + name)(*arguments)


def _checked(name, *arguments):
    if _call(name, *arguments) != 1:
        raise ValueError("refused by the reference: " + name)


def _pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def _flat32(array):
    return np.ascontiguousarray(array, np.float32).reshape(-1)


def split(tensor):
    """(flat contiguous storage, dtype name) of an array or (array, name)."""
    array, dtype = tensor if isinstance(tensor, tuple) else (tensor, None)
    array = np.asarray(array)
    dtype = dtype or array.dtype.name
    if array.dtype != STORAGE[dtype]:
        raise ValueError("an array of %s is not %s" % (array.dtype, dtype))
    return np.ascontiguousarray(array).reshape(-1), dtype


def shape_of(tensor):
    return np.shape(tensor[0] if isinstance(tensor, tuple) else tensor)


def widen(tensor):
    """fp32 array of the same shape."""
    flat, dtype = split(tensor)
    out = np.empty(flat.size, np.float32)
    _checked("widen", _pointer(flat), DTYPES[dtype], flat.size, _pointer(out))
    return out.reshape(shape_of(tensor))


def cast(array, dtype):
    """Storage array of `dtype` (uint16 for bfloat16) of the same shape."""
    flat = _flat32(array)
    out = np.empty(flat.size, STORAGE[dtype])
    _checked("cast", _pointer(flat), DTYPES[dtype], flat.size, _pointer(out))
    return out.reshape(np.shape(array))


def mean(arrays, dtype=None):
    """fp32 mean over ranks, in rank order, by the canonical tree."""
    pairs = [split((a, dtype) if dtype else a) for a in arrays]
    size = pairs[0][0].size
    if any(p[0].size != size or p[1] != pairs[0][1] for p in pairs):
        raise ValueError("ranks disagree on size or dtype")
    sources = (ctypes.c_void_p * len(pairs))(
        *[p[0].ctypes.data for p in pairs])
    out = np.empty(size, np.float32)
    _checked("mean", DTYPES[pairs[0][1]], len(pairs), sources, size,
             _pointer(out))
    return out.reshape(shape_of(arrays[0]))


def norm2(arrays):
    """(norm^2 of all tensors together, whether all elements are finite)."""
    limbs, finite = np.zeros(_call("limbs"), np.uint64), True
    for array in arrays:
        flat = _flat32(array)
        finite &= _call("norm2", _pointer(flat), flat.size,
                        _pointer(limbs)) == 1
    return _call("limbs_value", _pointer(limbs)), finite


def exact_sum(values):
    """Correctly rounded sum of non-negative doubles."""
    limbs = np.zeros(_call("limbs"), np.uint64)
    for value in values:
        _call("limbs_add", value, _pointer(limbs))
    return _call("limbs_value", _pointer(limbs))


def clip_factor(norm_squared, max_norm):
    """fp32 value as a Python float; max_norm None or 0: no clipping."""
    return _call("clip_factor", norm_squared, max_norm or 0.0)


def scalars(kind, hyper, step, clip=1.0):
    """The bytes of a step's scalars from PyTorch-style hyperparameters.

    Defaults are 0 for weight_decay, momentum and dampening (PyTorch's AdamW
    has 0.01: name it).
    """
    beta1, beta2 = hyper.get("betas", (0.9, 0.99 if kind == "lion" else 0.999))
    eps = hyper.get("eps", 1e-10 if kind == "adagrad" else 1e-8)
    values = np.array([
        hyper["lr"], beta1, beta2, eps,
        hyper.get("weight_decay", 0.0), hyper.get("momentum", 0.0),
        hyper.get("dampening", 0.0), 1.0 if hyper.get("nesterov") else 0.0,
        hyper.get("lr_decay", 0.0),
        hyper.get("initial_accumulator_value", 0.0)])
    out = np.zeros(_call("scalars_bytes"), np.uint8)
    _checked("scalars", KINDS[kind], _pointer(values), step, clip,
             _pointer(out))
    return out


class Optimizer:
    """The reference run of a whole job in one process.

    `groups` is a list of dicts as PyTorch's param_groups, with "params" a
    dict name -> initial value; values such as group["lr"] may be changed
    between steps. Masters are fp32, weights have the dtype given.
    """

    def __init__(self, name, groups, gradient_clipping=None):
        self.name = name
        self.groups = groups
        self.gradient_clipping = gradient_clipping
        self.applied_steps = 0
        self.master, self.m, self.v = {}, {}, {}
        self._dtype, self._weight = {}, {}
        for group in groups:
            for key, value in group["params"].items():
                self.master[key] = widen(value)
                self.m[key] = np.zeros_like(self.master[key])
                self.v[key] = np.zeros_like(self.master[key])
                self._dtype[key] = split(value)[1]
                self._weight[key] = cast(self.master[key], self._dtype[key])

    def weight(self, key):
        """The published weight: storage array of the tensor's dtype."""
        return self._weight[key]

    def step(self, gradients):
        """One step of `gradients`: name -> list over ranks (arrays or pairs).

        Returns a dict with grad_norm, clip_factor and skipped.
        """
        return self.step_means(
            {key: mean(value) for key, value in gradients.items()})

    def step_means(self, means):
        """The same from fp32 mean gradients, every element once."""
        square, finite = norm2(means.values())
        if not finite:
            return {"grad_norm": math.nan, "clip_factor": 1.0,
                    "skipped": True}
        clip = clip_factor(square, self.gradient_clipping)
        self.applied_steps += 1
        for group in self.groups:
            bits = scalars(self.name, group, self.applied_steps, clip)
            for key in group["params"]:
                self._update(key, bits, means[key])
        return {"grad_norm": math.sqrt(square), "clip_factor": clip,
                "skipped": False}

    def _update(self, key, bits, gradient):
        gradient = _flat32(gradient)
        if gradient.size != self.master[key].size:
            raise ValueError("gradient of %s has another size" % key)
        _checked("step", KINDS[self.name], _pointer(bits), gradient.size,
                 _pointer(gradient), _pointer(self.master[key]),
                 _pointer(self.m[key]), _pointer(self.v[key]),
                 DTYPES[self._dtype[key]], _pointer(self._weight[key]))


def pack_spec(bits, block, range="sym", hadamard=0, rounding="nearest"):
    """The spec's eight bytes on the wire, as a little-endian integer."""
    wire = bytes([1, bits, block.bit_length() - 1, RANGES[range], hadamard,
                  ROUNDINGS[rounding], 1, 0])
    return int.from_bytes(wire, "little")


def encode(spec, array, key=0, first=0):
    flat = _flat32(array)
    size = _call("encoded_bytes", spec, flat.size)
    if size < 0:
        raise ValueError("refused by the reference: spec %016x" % spec)
    out = np.empty(size, np.uint8)
    _checked("encode", spec, key, first, flat.size, _pointer(flat),
             _pointer(out))
    return out


def decode(spec, count, encoded):
    encoded = np.ascontiguousarray(encoded, np.uint8)
    if encoded.size != _call("encoded_bytes", spec, count):
        raise ValueError("wrong number of bytes for %d elements" % count)
    out = np.empty(count, np.float32)
    _checked("decode", spec, count, _pointer(encoded), _pointer(out))
    return out
