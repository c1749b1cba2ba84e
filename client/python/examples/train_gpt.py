"""A character-level GPT, trained by several workers through Ballast.

    tools/lab run --nodes 2 --workers 2 -- /usr/bin/python3 train_gpt.py
    python3 -m ballast.run --workers 4 train_gpt.py --steps 200

The model (gpt.py) is plain PyTorch, and so is the loop: ballast.torch.Optimizer
makes its parameters views of the weights that the daemon publishes and its
gradients views of this rank's gradient segment, so that nothing is copied. The
update runs in the daemon.

--baseline trains the same model on the same batches in one process with
PyTorch's own AdamW and the mean gradient of all ranks, for comparison;
train_gpt_ddp.py does it with PyTorch's DistributedDataParallel.
"""

import argparse
import os
import sys
import time
from typing import List

import torch
from torch import nn

import ballast
import ballast.torch
import gpt
from report import Report, Run, Traffic, finish


def train(options: argparse.Namespace, model: gpt.Gpt,
          text: torch.Tensor) -> Run:
    """Through Ballast."""
    optimizer = ballast.torch.Optimizer(
        gpt.param_groups(model), torch.optim.AdamW, lr=gpt.LEARNING_RATE,
        betas=gpt.BETAS, weight_decay=gpt.WEIGHT_DECAY, model=model,
        gradient_clipping=gpt.CLIPPING, exchange=options.exchange,
        job=None if os.environ.get("BALLAST_JOB") else "train-gpt")
    session = optimizer.session
    report = Report(optimizer.cursor)
    traffic = Traffic(gpt.size(model),
                      session.world_size // local_world_size())
    start = time.monotonic()
    for step in optimizer.steps(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = gpt.learning_rate(step, options.steps)
        optimizer.zero_grad()
        loss = model.loss(*gpt.batch(text, options.seed, step, session.rank))
        loss.backward()
        try:
            optimizer.step(cursor=report.cursor_after(loss.item()))
        except ballast.Aborted as error:
            print("step %d is repeated: %s" % (step, error), flush=True)
            continue
        result = optimizer.last_result
        report.add(loss.item())
        traffic.add(result.wire_bytes_sent, result.payload_bytes)
        if session.rank == 0 and (step % options.every == 0 or step == 1):
            print("step %d/%d: loss %.4f, gradient norm %.3f, lr %.2e, "
                  "daemon %.1f ms%s" % (
                      step, options.steps, loss.item(), result.grad_norm,
                      result.lr, 1e3 * result.seconds, traffic.progress()),
                  flush=True)
    report.seconds = time.monotonic() - start
    optimizer.close()
    return Run(report, gpt.weights(model), session.rank, traffic)


def local_world_size() -> int:
    """As torchrun says; without it, all ranks are on one node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or
               os.environ.get("WORLD_SIZE") or 1)


def baseline(options: argparse.Namespace, model: gpt.Gpt,
             text: torch.Tensor) -> Run:
    """The same in one process with PyTorch alone."""
    optimizer = gpt.pytorch_optimizer(model)
    report = Report()
    start = time.monotonic()
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        losses = [model.loss(*gpt.batch(text, options.seed, step, rank))
                  for rank in range(options.baseline)]
        (sum(losses) / len(losses)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), gpt.CLIPPING)
        for group in optimizer.param_groups:
            group["lr"] = gpt.learning_rate(step, options.steps)
        optimizer.step()
        report.add(losses[0].item())
    report.seconds = time.monotonic() - start
    return Run(report, gpt.weights(model), 0, Traffic(gpt.size(model), 1))


def parse(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=20, metavar="N",
                        help="a progress line every N steps")
    parser.add_argument("--exchange",
                        default=os.environ.get("BALLAST_LAB_PRESET", "exact"),
                        help="exchange preset")
    parser.add_argument("--baseline", type=int, metavar="W",
                        help="plain PyTorch over the batches of W ranks")
    parser.add_argument("--json", metavar="FILE",
                        help="rank 0 writes its losses and times there")
    options = parser.parse_args(argv)
    if options.steps < 1 or options.every < 1:
        parser.error("--steps and --every must be at least 1")
    return options


def main(argv: List[str]) -> None:
    options = parse(argv)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    text, num_kinds = gpt.load_text()
    model = gpt.Gpt(num_kinds)
    run = (baseline if options.baseline else train)(options, model, text)
    if run.rank == 0 and options.json:
        run.report.evaluation = gpt.evaluate(model, text)
    finish(run, len(text), options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
