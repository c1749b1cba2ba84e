"""One rank of tools/bench training: the same model, data and optimizer in one
of several ways.

    trainer.py --task gpt|conv --way WAY --steps K --seed S --json FILE

WAY is "plain" (one process that computes the batches of --ranks W ranks),
"ddp" (PyTorch's DistributedDataParallel over Gloo, with its defaults), or an
exchange policy of Ballast. Rank 0 writes its losses, and the loss of the
trained model on data that nobody saw.
"""

import argparse
import contextlib
import json
import os
import sys
from typing import Any, Dict, Iterator, List

import torch
from torch import distributed, nn

import ballast.torch
import tasks

_CLIPPING = 1.0
_ADAMW = {"betas": (0.9, 0.95), "weight_decay": 0.1}


def groups(model: nn.Module) -> List[Dict[str, Any]]:
    """Matrices decay; biases and norms do not."""
    decayed, others = [], []
    for name, parameter in model.named_parameters():
        is_other = name.endswith(".bias") or "norm" in name
        (others if is_other else decayed).append(parameter)
    return [{"params": decayed}, {"params": others, "weight_decay": 0.0}]


def pytorchs(task: Any, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups(model), lr=task.LEARNING_RATE,
                             foreach=False, **_ADAMW)


@contextlib.contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Running statistics are rank 0's: another rank's batch leaves none."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    yield
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(before[name])


class LossOf(nn.Module):
    """The model with its loss as forward(), which DDP hooks."""

    def __init__(self, task: Any, model: nn.Module):
        super().__init__()
        self._task = task
        self.model = model

    def forward(self, inputs: Any, targets: Any) -> Any:
        return self._task.loss(self.model, inputs, targets)


class Plain:
    """All ranks' batches in one process."""

    def __init__(self, task: Any, model: nn.Module,
                 options: argparse.Namespace):
        self.rank, self._ranks = 0, options.ranks
        self._task, self._model = task, model
        self.optimizer = pytorchs(task, model)

    def turn(self, seed: int, step: int) -> float:
        self.optimizer.zero_grad()
        result = self._backward(seed, step, 0)
        for rank in range(1, self._ranks):
            with kept_buffers(self._model):
                self._backward(seed, step, rank)
        nn.utils.clip_grad_norm_(self._model.parameters(), _CLIPPING)
        self.optimizer.step()
        return result

    def _backward(self, seed: int, step: int, rank: int) -> float:
        """Adds one rank's part of the mean gradient."""
        loss = self._task.loss(self._model,
                               *self._task.batch(seed, step, rank))
        (loss / self._ranks).backward()
        return loss.item()

    def end(self) -> None:
        pass


class Ddp:

    def __init__(self, task: Any, model: nn.Module,
                 options: argparse.Namespace):
        distributed.init_process_group("gloo")
        self.rank = distributed.get_rank()
        self._task, self._model = task, model
        self._loss_of = nn.parallel.DistributedDataParallel(
            LossOf(task, model))
        self.optimizer = pytorchs(task, model)

    def turn(self, seed: int, step: int) -> float:
        self.optimizer.zero_grad()
        loss = self._loss_of(*self._task.batch(seed, step, self.rank))
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), _CLIPPING)
        self.optimizer.step()
        return loss.item()

    def end(self) -> None:
        distributed.barrier()
        distributed.destroy_process_group()


class Ballast:

    def __init__(self, task: Any, model: nn.Module,
                 options: argparse.Namespace):
        self._task, self._model = task, model
        self.optimizer = ballast.torch.Optimizer(
            groups(model), torch.optim.AdamW, lr=task.LEARNING_RATE,
            model=model, gradient_clipping=_CLIPPING, exchange=options.way,
            job=None if os.environ.get("BALLAST_JOB") else "training",
            **_ADAMW)
        self.rank = self.optimizer.session.rank

    def turn(self, seed: int, step: int) -> float:
        self.optimizer.zero_grad()
        loss = self._task.loss(self._model,
                               *self._task.batch(seed, step, self.rank))
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def end(self) -> None:
        self.optimizer.close()


def main(argv: List[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=sorted(tasks.TASKS), required=True)
    parser.add_argument("--way", required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--json", required=True)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    task = tasks.TASKS[options.task]()
    model = task.model()
    way = {"plain": Plain, "ddp": Ddp}.get(options.way, Ballast)(
        task, model, options)
    losses = []
    for step in range(1, options.steps + 1):
        for group in way.optimizer.param_groups:
            group["lr"] = task.learning_rate(step, options.steps)
        losses.append(way.turn(options.seed, step))
    way.end()
    if way.rank == 0:
        with open(options.json, "w", encoding="utf-8") as stream:
            json.dump({"losses": losses, "evaluation": task.evaluate(model)},
                      stream)


if __name__ == "__main__":
    main(sys.argv[1:])
