#!/usr/bin/python3
"""A hundred steps of the reference equal PyTorch's within 1e-6 in norm per
tensor; Lion, which PyTorch lacks, those of its paper's algorithm in double.

Both are fed one recorded gradient sequence (closed-loop equality is
impossible: rounding of a zero gradient is amplified by Adam). Negative
controls: a wrong hyperparameter must be seen.
"""

import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import reference  # noqa: E402

try:
    import torch
except ImportError:
    print("SKIPPED: no torch")
    sys.exit(0)

STEPS = 100
TOLERANCE = 1e-6
SHAPES = {"wte": (64, 48), "bias": (48,), "scale": (), "odd": (3, 5, 7),
          "long": (2049,)}

CASES = [
    ("sgd", torch.optim.SGD, {"lr": 0.05}),
    ("sgd", torch.optim.SGD, {"lr": 0.05, "weight_decay": 0.1}),
    ("sgd", torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    ("sgd", torch.optim.SGD, {"lr": 0.05, "momentum": 0.9,
                              "dampening": 0.3}),
    ("sgd", torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True,
                              "weight_decay": 0.01}),
    ("adam", torch.optim.Adam, {"lr": 1e-3}),
    ("adam", torch.optim.Adam, {"lr": 1e-3, "betas": (0.8, 0.95),
                                "weight_decay": 0.1}),
    ("adamw", torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.0}),
    ("adamw", torch.optim.AdamW, {"lr": 3e-4, "betas": (0.9, 0.95),
                                  "eps": 1e-6, "weight_decay": 0.1}),
    ("adagrad", torch.optim.Adagrad, {"lr": 1e-2}),
    ("adagrad", torch.optim.Adagrad, {"lr": 1e-2, "lr_decay": 0.05,
                                      "eps": 1e-6, "weight_decay": 0.1,
                                      "initial_accumulator_value": 0.3}),
]
LION_CASES = [{"lr": 1e-3}, {"lr": 1e-3, "betas": (0.95, 0.98),
                             "weight_decay": 0.1}]


def recorded():
    """Initial values and the gradients of all steps.

    Gradients are small enough that no weight travels many times its own
    size: a 0-D tensor that ends near zero after a long way has lost its bits
    to cancellation, in PyTorch as here.
    """
    random = np.random.RandomState(1)

    def normal(shape, size=1.0):
        return np.array(random.randn(*shape) * size, np.float32)

    initial = {k: normal(s) for k, s in SHAPES.items()}
    gradients = [{k: normal(s, 10.0**random.uniform(-4, 0))
                  for k, s in SHAPES.items()} for _ in range(STEPS)]
    return initial, gradients


def run_torch(optimizer, hyper, initial, gradients, clipping=None):
    params = {k: torch.nn.Parameter(torch.from_numpy(v.copy()))
              for k, v in initial.items()}
    opt = optimizer(list(params.values()), **hyper)
    for i, step in enumerate(gradients):
        opt.param_groups[0]["lr"] = hyper["lr"] * (1 + i) / STEPS
        for k, p in params.items():
            p.grad = torch.from_numpy(step[k].copy())
        if clipping:
            torch.nn.utils.clip_grad_norm_(params.values(), clipping)
        opt.step()
    return {k: p.detach().numpy() for k, p in params.items()}


def run_lion(hyper, initial, gradients, clipping=None):
    """Chen et al. 2023 (arXiv 2302.06675), algorithm 2, in double."""
    beta1, beta2 = hyper.get("betas", (0.9, 0.99))
    params = {k: np.float64(v) for k, v in initial.items()}
    m = {k: np.zeros_like(v) for k, v in params.items()}
    for i, step in enumerate(gradients):
        lr = hyper["lr"] * (1 + i) / STEPS
        norm = np.sqrt(sum((np.float64(g)**2).sum() for g in step.values()))
        clip = min(1, clipping / (norm + 1e-6)) if clipping else 1
        for k, g in step.items():
            g = np.float64(g) * clip
            update = np.sign(beta1 * m[k] + (1 - beta1) * g)
            m[k] = beta2 * m[k] + (1 - beta2) * g
            params[k] = params[k] - lr * (
                update + hyper.get("weight_decay", 0.0) * params[k])
    return params


def run_reference(name, hyper, initial, gradients, clipping=None):
    group = dict(hyper, params={k: v.copy() for k, v in initial.items()})
    opt = reference.Optimizer(name, [group], gradient_clipping=clipping)
    for i, step in enumerate(gradients):
        group["lr"] = hyper["lr"] * (1 + i) / STEPS
        opt.step({k: [g] for k, g in step.items()})
    return opt.master


def distance(a, b):
    """The largest relative difference in norm over the tensors."""
    return max(np.linalg.norm(np.float64(a[k]) - np.float64(b[k])) /
               np.linalg.norm(np.float64(b[k])) for k in a)


def main():
    initial, gradients = recorded()
    failures = 0

    def check(what, ok, value):
        nonlocal failures
        failures += not ok
        print("%s %.2e %s" % ("ok    " if ok else "FAILED", value, what))

    for name, optimizer, hyper in CASES:
        for clipping in (None, 1.0):
            d = distance(
                run_reference(name, hyper, initial, gradients, clipping),
                run_torch(optimizer, hyper, initial, gradients, clipping))
            check("%s %s clipping %s" % (name, hyper, clipping),
                  d <= TOLERANCE, d)

    for hyper in LION_CASES:
        for clipping in (None, 1.0):
            d = distance(
                run_reference("lion", hyper, initial, gradients, clipping),
                run_lion(hyper, initial, gradients, clipping))
            check("lion %s clipping %s" % (hyper, clipping),
                  d <= TOLERANCE, d)
    d = distance(run_reference("lion", dict(LION_CASES[0], betas=(0.9, 0.991)),
                               initial, gradients),
                 run_lion(LION_CASES[0], initial, gradients))
    check("control: lion with another beta2 differs", d > TOLERANCE, d)

    for name, optimizer, hyper, wrong in (
        ("adamw", torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.1},
         {"weight_decay": 0.101}),
        ("adagrad", torch.optim.Adagrad, {"lr": 1e-2},
         {"initial_accumulator_value": 1e-4}),
        ("adam", torch.optim.Adam, {"lr": 1e-3}, {"betas": (0.9, 0.9991)}),
        ("sgd", torch.optim.SGD, {"lr": 0.05, "momentum": 0.9},
         {"momentum": 0.9, "nesterov": True})):
        d = distance(
            run_reference(name, dict(hyper, **wrong), initial, gradients),
            run_torch(optimizer, hyper, initial, gradients))
        check("control: %s with %s differs" % (name, wrong),
              d > TOLERANCE, d)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
