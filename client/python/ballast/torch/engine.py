"""initialize(): a DeepSpeed loop with one import changed."""

from typing import Any, Dict, Iterator, List, NamedTuple, Optional

import torch

from .. import _options, deepspeed, errors
from .optimizer import Optimizer
from .schedules import Warmup


class Initialized(NamedTuple):
    """What DeepSpeed's initialize returns; the data loader is yours."""
    engine: "Engine"
    optimizer: Optimizer
    training_dataloader: None
    lr_scheduler: Any


def initialize(model: torch.nn.Module, config: deepspeed.Config, *,
               model_parameters: Any = None, lr_scheduler: Any = None,
               **options: Any) -> Initialized:
    """Builds optimizer and scheduler from a DeepSpeed JSON (a path or a
    dictionary), or from what ballast.convert wrote.

    Args:
      model: is converted to bfloat16 if the configuration says so.
      model_parameters: parameters or groups; default: all of the model.
      lr_scheduler: a function of the optimizer, instead of the
        configuration's "scheduler".
      **options: further arguments of Optimizer (job, address, …), which come
        before the configuration's.

    Raises InvalidArgument that lists every key which cannot be honoured, with
    the reason and the nearest equivalent.
    """
    topology = _options.topology(
        _options.environment(), **{
            key: options.get(key) for key in (
                "rank", "world_size", "local_rank", "local_world_size",
                "node_rank")})
    reading = deepspeed.read(config, topology["world_size"],
                             topology["local_world_size"]).check()
    if reading.dtype == "bfloat16":
        model.to(torch.bfloat16)
    arguments = dict(reading.arguments)
    hyper = arguments.pop("hyper")
    if arguments.get("overlap"):
        arguments["backward_passes_per_step"] = reading.accumulation
    arguments.update(options)
    optimizer = Optimizer(
        model.parameters() if model_parameters is None else model_parameters,
        model=model, **{**hyper, **arguments})
    if topology["rank"] == 0:
        for change in reading.changes:
            print("ballast: " + change)
    scheduler = None
    if lr_scheduler is not None:
        scheduler = lr_scheduler(optimizer)
    elif reading.scheduler is not None:
        scheduler = Warmup(optimizer, reading.scheduler["type"],
                           reading.scheduler["params"])
    if scheduler is not None:
        optimizer.track(scheduler, name="lr_scheduler")
    engine = Engine(model, optimizer, scheduler, reading)
    return Initialized(engine, optimizer, None, scheduler)


class Engine:
    """DeepSpeed's engine, as far as a training loop uses it:

        loss = engine(batch)
        engine.backward(loss)
        engine.step()          # steps at each accumulation boundary
    """

    def __init__(self, module: torch.nn.Module, optimizer: Optimizer,
                 lr_scheduler: Any, reading: deepspeed.Reading):
        self.module = module
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self._reading = reading
        self.micro_steps = 0
        self.global_steps = optimizer.open_step - 1

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named)

    forward = __call__

    def backward(self, loss: torch.Tensor) -> torch.Tensor:
        """Of the loss divided by the accumulation steps."""
        (loss / self._reading.accumulation).backward()
        return loss

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether this micro step's step() is an optimizer step."""
        return (self.micro_steps + 1) % self._reading.accumulation == 0

    def step(self, *, cursor: bytes = b"") -> None:
        """After each backward; the optimizer steps at the boundary."""
        is_boundary = self.is_gradient_accumulation_boundary()
        self.micro_steps += 1
        if not is_boundary:
            return
        try:
            self.optimizer.step(cursor=cursor)
        except errors.DeadlineExceeded:
            self.micro_steps -= 1  # the same call may be repeated
            raise
        self.optimizer.zero_grad()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        self.global_steps += 1
        self._print()

    def _print(self) -> None:
        every = self._reading.steps_per_print
        result = self.optimizer.last_result
        if every is None or self.global_steps % every or result is None or \
                self.optimizer.session.rank != 0:
            return
        line = "step=%d, skipped=%d, lr=%s, grad_norm=%.4g" % (
            self.global_steps, result.skipped, self.get_lr(),
            result.grad_norm)
        if self._reading.wall_clock_breakdown:
            line += ", " + ", ".join(
                "%s: %.2f ms" % (name, 1e3 * seconds)
                for name, seconds in result.stage_seconds.items())
        print(line, flush=True)

    # ---- What DeepSpeed's engine can be asked. ----

    def gradient_accumulation_steps(self) -> int:
        return self._reading.accumulation

    def train_micro_batch_size_per_gpu(self) -> Optional[int]:
        return self._reading.micro_batch

    def train_batch_size(self) -> Optional[int]:
        micro = self._reading.micro_batch
        return None if micro is None else (
            micro * self._reading.accumulation * self._reading.world_size)

    def get_lr(self) -> List[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> Optional[float]:
        result = self.optimizer.last_result
        return None if result is None else result.grad_norm

    def train(self, mode: bool = True) -> "Engine":
        self.module.train(mode)
        return self

    def eval(self) -> "Engine":
        return self.train(False)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return self.module.parameters()

    def state_dict(self) -> Dict[str, Any]:
        return self.module.state_dict()

    def save_checkpoint(self, *_unused: Any, **_named: Any) -> None:
        """Refused: says what to call instead."""
        raise errors.FailedPrecondition(
            "save_checkpoint: the state is the daemon's; engine.optimizer."
            "save(name) keeps it in its snapshots.directory, and torch.save("
            "engine.module.state_dict()) the weights alone")

    def load_checkpoint(self, *_unused: Any, **_named: Any) -> None:
        """Refused: says what to do instead."""
        raise errors.FailedPrecondition(
            "load_checkpoint: a job goes on from its newest snapshot by "
            "itself, or opens with load=name; weights alone go into the model "
            "before initialize(), or optimizer.load_weights() takes them")
