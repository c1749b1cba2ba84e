"""The same training with PyTorch's DistributedDataParallel over Gloo: what
Ballast is compared with.

    tools/lab run --nodes 2 --workers 2 -- /usr/bin/python3 train_gpt_ddp.py

Model, batches, learning rates and clipping are those of train_gpt.py; each
rank holds the whole optimizer state, and gradients cross as fp32. Gloo uses
the interface of GLOO_SOCKET_IFNAME.
"""

import argparse
import os
import sys
import time
from typing import List

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import gpt
from report import Report, Run, Traffic, finish


class LossOf(nn.Module):
    """The model with its loss as forward(), which DDP hooks."""

    def __init__(self, model: gpt.Gpt):
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor,
                targets: torch.Tensor) -> torch.Tensor:
        return self.model.loss(inputs, targets)


def train(options: argparse.Namespace, model: gpt.Gpt,
          text: torch.Tensor) -> Run:
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    loss_of = DistributedDataParallel(LossOf(model))
    optimizer = gpt.pytorch_optimizer(model)
    report = Report()
    nodes = world_size // int(os.environ["LOCAL_WORLD_SIZE"])
    distributed.barrier()
    traffic = Traffic(gpt.size(model), nodes)
    start = time.monotonic()
    for step in range(1, options.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = gpt.learning_rate(step, options.steps)
        optimizer.zero_grad()
        loss = loss_of(*gpt.batch(text, options.seed, step, rank))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), gpt.CLIPPING)
        optimizer.step()
        report.add(loss.item())
        traffic.add()
        if rank == 0 and (step % options.every == 0 or step == 1):
            print("step %d/%d: loss %.4f, gradient norm %.3f" %
                  (step, options.steps, loss.item(), norm), flush=True)
    report.seconds = time.monotonic() - start
    return Run(report, gpt.weights(model), rank, traffic)


def main(argv: List[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    text, num_kinds = gpt.load_text()
    distributed.init_process_group("gloo")
    try:
        run = train(options, gpt.Gpt(num_kinds), text)
        finish(run, len(text), options.json)
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
