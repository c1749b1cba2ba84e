"""A GPT whose weights no node keeps in full: gathered where modules use them,
for forward and again for backward, and given back (ZeRO-3).

    tools/lab run --nodes 2 --workers 1 -- /usr/bin/python3 zero3.py
    python3 -m ballast.run --workers 2 zero3.py --budget 1000000

A node may hold `--budget` bytes of weights at once, less than the model has.
With the exchange `exact` the losses are those of resident weights, bit for bit:
`--resident` trains so, for comparison. At the end rank 0 prints what the node
held at most, and what it pulled from the others.
"""

import argparse
import sys
from typing import List

import torch

import ballast
import ballast.torch
import gpt


class Model(gpt.Gpt):
    """The loss as the forward: weights are gathered within it."""

    def forward(self, inputs: torch.Tensor,
                targets: torch.Tensor) -> torch.Tensor:
        return self.loss(inputs, targets)


def exchange(options: argparse.Namespace) -> str:
    if options.resident:
        return options.exchange
    return "%s secondary_partition=none resident_bytes=%d" % (
        options.exchange, options.budget)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exchange", default="exact")
    parser.add_argument("--budget", type=int, default=1_500_000)
    parser.add_argument("--resident", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    text, kinds = gpt.load_text()
    model = Model(kinds)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    optimizer = ballast.torch.Optimizer(
        gpt.param_groups(model), torch.optim.AdamW, lr=gpt.LEARNING_RATE,
        betas=gpt.BETAS, weight_decay=gpt.WEIGHT_DECAY, model=model,
        gradient_clipping=gpt.CLIPPING, exchange=exchange(options),
        bucket_bytes=65536, job="zero3")
    session = optimizer.session
    losses: List[float] = []
    most = 0
    for step in optimizer.steps(options.steps):
        optimizer.zero_grad()
        loss = model(*gpt.batch(text, options.seed, step, session.rank))
        most = max(most, held(session))
        loss.backward()
        most = max(most, held(session))
        optimizer.step()
        losses.append(loss.item())
    if session.rank == 0:
        for step, value in enumerate(losses, 1):
            print("step %d: loss %.6f" % (step, value))
        if not options.resident:
            gather = session.stats()["gather"]
            print("model %d bytes, node held at most %d of %d allowed, "
                  "pulled %s" % (size, most, options.budget,
                                 gather.get("payload_pulled", 0)))
    optimizer.close()
    return 0


def held(session: ballast.Session) -> int:
    """Bytes of weights that this node holds now."""
    return int(session.stats().get("gather", {}).get("resident_bytes", 0))


if __name__ == "__main__":
    sys.exit(main())
