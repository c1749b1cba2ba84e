"""A job whose gradients are a function of (step, rank), and its reference:
the same run in process, from the scalar kernels."""

import hashlib
import time
import zlib

import numpy as np

import reference

# Mixed dtypes; sizes around cells and buckets; a scalar; an empty tensor.
SHAPES = {
    "embedding": ((33, 65), "float32"),
    "layer.0.weight": ((2049,), "bfloat16"),
    "layer.0.bias": ((7,), "float16"),
    "layer.1.weight": ((3, 5, 2, 11), "float16"),
    "layer.1.bias": ((), "float32"),
    "empty": ((0, 3), "float32"),
    "head": ((100003,), "float32"),
}


def _random(key, shape, scale):
    generator = np.random.default_rng(zlib.crc32(key.encode()))
    return (generator.standard_normal(shape) * scale).astype(np.float32)


def initial(shapes=None):
    """The `tensors` argument: values by name."""
    values = {}
    for name, (shape, dtype) in (shapes or SHAPES).items():
        array = reference.cast(_random("init " + name, shape, 0.5), dtype)
        values[name] = (array, dtype) if dtype == "bfloat16" else array
    return values


def gradient(name, step, rank, shapes=None):
    """Storage array (uint16 for bf16) of one rank's gradient."""
    shape, dtype = (shapes or SHAPES)[name]
    return reference.cast(
        _random("%s %d %d" % (name, step, rank), shape, 0.1), dtype)


def fill(session, step):
    """Writes this rank's gradients of the step."""
    for name in session.grads:
        session.grads[name][...] = gradient(name, step, session.rank)


def add(session, step):
    """Adds them to what is there; of a bfloat16 that is not zero, its code."""
    for name in session.grads:
        session.grads[name][...] += gradient(name, step, session.rank)


def learning_rate(step):
    return 0.01 / step


class Reference:
    """The whole job in this process."""

    def __init__(self, world, optimizer, clipping=None, no_decay=()):
        self.world = world
        hyper = {k: v for k, v in optimizer.items() if k != "name"}
        values = initial()
        rest = {n: v for n, v in values.items() if n not in no_decay}
        groups = [dict(hyper, params=rest)]
        if no_decay:
            groups.append(dict(hyper, weight_decay=0.0,
                               params={n: values[n] for n in no_decay}))
        self.run = reference.Optimizer(optimizer["name"], groups, clipping)

    def step(self, step):
        for group in self.run.groups:
            group["lr"] = learning_rate(step)
        gradients = {}
        for name, (_, dtype) in SHAPES.items():
            arrays = [gradient(name, step, rank)
                      for rank in range(self.world)]
            gradients[name] = [(a, dtype) if dtype == "bfloat16" else a
                               for a in arrays]
        return self.run.step(gradients)

    def weight(self, name):
        return self.run.weight(name)


def train(session, steps, check=None):
    """Trains up to `steps`; check(step, result) after each."""
    for step in session.steps(steps):
        fill(session, step)
        for group in session.param_groups:
            group["lr"] = learning_rate(step)
        result = session.step(cursor=b"after %d" % step)
        if check is not None:
            check(step, result)


def look(session, pause=0.0):
    """A digest of all weights, which stay the same for so long; gathered for
    it, where they are not resident."""
    names = sorted(session.params)

    def digest():
        sha = hashlib.sha256()
        for name in names:
            sha.update(session.params[name].tobytes())
        return sha.digest()

    if session.gathers_weights:
        session.gather(names)
    seen = digest()
    time.sleep(pause)
    assert digest() == seen, "weights changed under their reader"
    if session.gathers_weights:
        session.release(names)
    return seen


def weights(session):
    """Copies of all published weights."""
    return {name: np.array(array) for name, array in session.params.items()}
