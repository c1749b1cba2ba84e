"""A worker is killed and nobody notices.

    python3 -m ballast.run --workers 2 --max-restarts 1 \\
        resume.py --die-at 5 --die-rank 1

A small convolutional net with everything that is easily lost: BatchNorm's
running statistics, dropout, augmentation by numpy and random, a scheduler,
momentum. Rank 1 kills itself (SIGKILL) in step 5; it is started again, goes
on in the middle of that step, and the digest of weights and buffers at the
end is that of a run without --die-at.
"""

import argparse
import hashlib
import os
import random
import signal
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import ballast.torch


def build() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(8 * 6 * 6, 10))


def batch(step: int, rank: int):
    """A function of (step, rank), except for the augmentation."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    images = torch.randn(16, 1, 12, 12, generator=generator)
    labels = torch.randint(10, (16,), generator=generator)
    if random.random() < 0.5:
        images = images.flip(3)
    return images + torch.from_numpy(
        np.random.normal(0, 0.01, images.shape).astype(np.float32)), labels


def digest(model: nn.Module) -> str:
    total = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        total.update(name.encode() + value.numpy().tobytes())
    return total.hexdigest()


def die_if_told(options: argparse.Namespace, step: int, rank: int,
                where: str) -> None:
    is_first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if (is_first_life and step == options.die_at
            and rank == options.die_rank and where == options.die_where):
        print("dies in step %d" % step, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--die-at", type=int, metavar="STEP")
    parser.add_argument("--die-rank", type=int, default=0)
    parser.add_argument("--die-where", default="backward",
                        choices=["backward", "forward", "committed"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = build()
    optimizer = ballast.torch.Optimizer(
        model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9,
        model=model, gradient_clipping=1.0, overlap=options.overlap)
    rank = optimizer.session.rank
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    optimizer.track(scheduler)
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    seen = steps_in(optimizer.cursor)
    for step in optimizer.steps(options.steps):  # starts at the open step
        images, labels = batch(step, rank)
        loss = functional.cross_entropy(model(images), labels)
        die_if_told(options, step, rank, "forward")
        loss.backward()
        die_if_told(options, step, rank, "backward")
        seen.append(step)
        optimizer.step(cursor=repr(seen).encode())  # committed with the step
        die_if_told(options, step, rank, "committed")
        optimizer.zero_grad()
        scheduler.step()
        if rank == 0:
            print("step %d: loss %.4f" % (step, loss.item()), flush=True)
    print("rank %d saw %d steps, digest %s"
          % (rank, len(seen), digest(model)), flush=True)
    optimizer.close()


def steps_in(cursor: bytes):
    """The steps that this rank has seen, also in its former lives."""
    return [int(word) for word in cursor.decode().strip("[]").split(",")
            if word]


if __name__ == "__main__":
    sys.exit(main())
