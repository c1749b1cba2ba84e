"""Optimizer: a torch.optim.Optimizer whose state lives in the daemon."""

import atexit
import contextlib
import os
import weakref
from typing import (Any, Callable, Dict, Iterable, Iterator, List, Optional,
                    Union)

import torch

from .. import errors
from ..result import StepResult
from ..session import Session
from . import (_gathered, _gathered_rules, _hyper, _mistakes, _rendezvous,
               _setup, _weights)
from ._gradients import Gradients
from ._guard import Guard
from ._overlap import Overlap
from ._parameters import Entry, parse
from ._state import State
from ._weights import Weights


class Optimizer(torch.optim.Optimizer):
    """One rank's optimizer; state and update are the daemon's.

        optimizer = ballast.torch.Optimizer(
            model.parameters(), torch.optim.AdamW, lr=3e-4, job="gpt2")

    Parameters become views of the published weights, gradients views of this
    rank's gradient segment. Building it blocks until all ranks are there.

    Args:
      params: parameters, (name, parameter) pairs, or groups of either, as
        torch.optim takes them. requires_grad=False: registered as frozen.
      optimizer: a class of torch.optim or its name.
      model: the module that is trained: gives the parameters their names,
        its persistent buffers are committed with each step, and mistakes are
        found earlier. Its parameters that are in no group are frozen.
      gradient_clipping: largest global norm; None: no clipping.
      overlap: gradients are pushed during backward, bucket by bucket, and
        step() returns at commit: the new weights are waited for where they
        are first used. Needs model=.
      backward_passes_per_step: with overlap: push in the k-th backward.
      buffers: persistent buffers of `model` that change: "rank0": rank 0's
        are committed, and all ranks have them after each step; "cursor": each
        rank's own are committed; "local": they stay with this process.
      gather_cache: with exchange={"secondary_partition": "none"} (needs
        model=): bytes of weights that are kept after their use within a
        step; 0: each module's are given back at once.
      strict: refuse what the exchange policy cannot honour.
      job, exchange, resume, load, address, coordinator, token, timeout,
      connect_timeout, tenant, bucket_bytes, hold, rank, world_size,
      local_rank, local_world_size, node_rank: see ballast.Session. With
      several nodes and an initialised process group, rank 0's coordinator is
      taken from its store where neither argument nor environment has one.
      **hyper: the optimizer's own arguments: lr, betas, weight_decay, …

    Threads and forks: as ballast.Session.
    """

    # GradScaler hands its scale over instead of touching gradients itself.
    _step_supports_amp_scaling = True

    def __init__(self, params: Any, optimizer: Union[type, str] = "adamw", *,
                 model: Optional[torch.nn.Module] = None,
                 job: Optional[str] = None, exchange: Any = "exact",
                 gradient_clipping: Optional[float] = None,
                 overlap: bool = False, backward_passes_per_step: int = 1,
                 resume: str = "auto", load: Optional[str] = None,
                 address: Optional[str] = None,
                 coordinator: Optional[str] = None,
                 token: Optional[str] = None, strict: bool = True,
                 buffers: str = "rank0", gather_cache: int = 0,
                 timeout: float = 600.0,
                 connect_timeout: float = 30.0, tenant: Optional[str] = None,
                 bucket_bytes: Optional[int] = None,
                 hold: Optional[float] = None, rank: Optional[int] = None,
                 world_size: Optional[int] = None,
                 local_rank: Optional[int] = None,
                 local_world_size: Optional[int] = None,
                 node_rank: Optional[int] = None, **hyper: Any):
        self._is_open = False
        self._name = _hyper.optimizer_name(optimizer)
        defaults = _hyper.defaults(self._name, hyper)
        parsed = parse(params, model)
        self._entries: List[Entry] = parsed.entries
        self._trainable = [e for e in parsed.entries if e.is_trainable]
        self._model = model
        _mistakes.check_not_ddp(model, self._entries)
        _setup.check_unowned(self._entries)
        self._gather_cache = _gathered_rules.check_cache(gather_cache)
        if _gathered_rules.is_asked_for(exchange):
            _gathered_rules.check(model, overlap)
        self._overlap = Overlap.create(self, model, overlap,
                                       backward_passes_per_step)
        given = [_hyper.group_values(self._name, group, index)
                 for index, group in enumerate(parsed.groups)]
        super().__init__([{"params": group["params"], **others, **values}
                          for group, (values, others)
                          in zip(parsed.groups, given)], defaults)
        place, job = _setup.place(job, rank, world_size, local_rank,
                                  local_world_size, node_rank)
        self._arguments = dict(
            job=job, optimizer={"name": self._name, **defaults},
            param_groups=_setup.session_groups(
                self._entries, self.param_groups, self._name),
            trainable=[e.name for e in self._trainable],
            exchange=_setup.exchange(exchange, strict),
            gradient_clipping=gradient_clipping, address=address,
            coordinator=_rendezvous.coordinator(
                coordinator, place, job, os.environ, connect_timeout),
            token=token, timeout=timeout, connect_timeout=connect_timeout,
            tenant=tenant, bucket_bytes=bucket_bytes, hold=hold, **place)
        self._clipping = gradient_clipping or 0.0
        self.loss_scale: float = 1.0
        self.last_result: Optional[StepResult] = None
        self._pid = os.getpid()
        self._pending: Optional[bytes] = None  # cursor of a step handed over
        self._pending_user = b""
        self._pending_norm: Optional[float] = None
        self._early: Optional[StepResult] = None  # by clip_grad_norm_
        self._is_repeat = False
        self._is_finished = False
        _setup.check_buffers(buffers)
        self._state = State(None if buffers == "local" else model,
                            follows=buffers == "rank0" and place["rank"] != 0)
        self._open(resume, load)
        if self.session.resumed:
            self._take_over()
        if model is not None:
            self._guard = model.register_forward_pre_hook(
                Guard(weakref.ref(self)))
        _setup.live.add(self)
        atexit.register(_setup.end_at_exit, weakref.ref(self))

    def _open(self, resume: str, load: Optional[str] = None) -> None:
        self.session: Session = Session(
            tensors=_weights.values(self._entries), resume=resume, load=load,
            **self._arguments)
        self._is_open = True
        copies = self.grad_copies if hasattr(self, "_gradients") else 0
        self._weights: Union[Weights, _gathered.Gathered]
        if self.session.gathers_weights:
            assert self._model is not None
            self._weights = _gathered.Gathered(
                self.session, self._entries, self._model, self._explain,
                self._gather_cache)
        else:
            self._weights = Weights(self.session, self._entries,
                                    self._explain)
        self._shapes = {e.name: _mistakes.Shape(e.parameter)
                        for e in self._entries}
        self._gradients = Gradients(self.session, self._entries)
        self._gradients.copies = copies
        self._is_first_check = True
        if self._overlap is not None:
            self._overlap.attach(self._trainable, self._entries)

    def _take_over(self) -> None:
        """A job that goes on: its hyperparameters, this rank's state."""
        held = _hyper.held(self.session, len(self.param_groups), self._name)
        for group, values in zip(self.param_groups, held):
            if values["lr"] != group["lr"]:
                group.setdefault("initial_lr", group["lr"])
            group.update(values)
        self._held = held
        self._state.resume(self.session.cursor, self.session.rank0_cursor)

    # ---- torch.optim.Optimizer's methods. ----

    def step(self, closure: Optional[Callable[[], Any]] = None, *,
             cursor: bytes = b"", timeout: Optional[float] = None) -> Any:
        """Pushes this rank's gradients, waits until the step is committed
        and (without overlap) its weights are published.

        Args:
          closure: computes the loss again, as in torch.optim; not when a
            call that timed out is repeated.
          cursor: the user's own bytes, committed with the step: see
            `cursor`.
          timeout: seconds, instead of the optimizer's.

        Returns what closure returned. `last_result` has the rest. Raises
        ballast.Aborted if the step was dropped: compute it again.
        """
        loss = None
        if closure is not None and self._pending is None:
            with torch.enable_grad():
                loss = closure()
        if self._early is None:
            self._commit(cursor, timeout, wait=self._overlap is None)
        elif cursor:
            raise errors.InvalidArgument(
                "clip_grad_norm_ has handed this step over: give cursor= to "
                "it instead of step()")
        else:
            self._gradients.check_pushed(self._trainable)
        if self._early is not None and self._overlap is None:
            self.session.wait(timeout=timeout)
        self._conclude()
        return loss

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Zeroes the gradients in place. set_to_none=True is taken too, but
        then the next gradients are made elsewhere and copied
        (`grad_copies`)."""
        self._gradients.zero(self._trainable, set_to_none)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Refused once the job runs: its tensors are fixed."""
        if self._is_open:
            raise errors.FailedPrecondition(
                "add_param_group: the tensors of a job cannot change while it "
                "runs; give all groups at the start (frozen ones with "
                "requires_grad=False), or close() and build another optimizer")
        super().add_param_group(param_group)

    def state_dict(self) -> Dict[str, Any]:
        """PyTorch's form. "state" is empty: moments are in the daemon, and
        outlive this process."""
        result = super().state_dict()
        result["ballast"] = {"job": self.session.job,
                             "optimizer_step": self.session.optimizer_step,
                             "weight_version": self.session.weight_version}
        return result

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes the hyperparameters of each group; refuses moments."""
        if state_dict.get("state"):
            raise errors.FailedPrecondition(
                "load_state_dict: moments live in the daemon, which loads "
                "them from a snapshot (load=). A held job goes on by itself; "
                "to take the hyperparameters only, give {**state_dict, "
                "\"state\": {}}")
        given = state_dict["param_groups"]
        for index, group in enumerate(given):
            _hyper.group_values(self._name, group, index)
        super().load_state_dict({"state": {}, "param_groups": given})

    def __deepcopy__(self, memo: Any) -> Any:
        raise errors.FailedPrecondition(
            "this optimizer cannot be copied: its state is one job's, in the "
            "daemon. copy.deepcopy(model) gives an ordinary model")

    def __getstate__(self) -> Dict[str, Any]:
        raise errors.FailedPrecondition(
            "this optimizer cannot be pickled: its state is in the daemon; "
            "state_dict() gives the hyperparameters")

    # ---- Ballast's own. ----

    @property
    def grad_copies(self) -> int:
        """Gradients that were copied into the segment, so far."""
        return self._gradients.copies

    @property
    def open_step(self) -> int:
        """The step to compute; the first of a job is 1."""
        return self.session.open_step

    @property
    def resumed(self) -> bool:
        """Whether a job that existed goes on."""
        return self.session.resumed

    @property
    def cursor(self) -> bytes:
        """The user's bytes that this rank committed last, b"" before."""
        return self._state.user

    def steps(self, total: int) -> Iterator[int]:
        """Yields the steps to compute, up to `total`: starts at the open step
        and yields a step again after Aborted, with the random numbers and
        buffers that it had, and zero gradients. Once it is through, the job
        ends with the process."""
        session = self.session
        for step in session.steps(total):
            if self._is_repeat:
                self.zero_grad()
            self._state.begin_turn(self._is_repeat)
            self._is_repeat = False
            yield step
            if self.session is not session:
                raise _mistakes.restarted_within_steps()
        self._is_finished = True

    def track(self, thing: Any, *, name: Optional[str] = None,
              per_step: Optional[bool] = None) -> bool:
        """Commits thing.state_dict() with each step, and gives it back to a
        worker that goes on: schedulers, samplers.

        Args:
          name: default: a number, in the order of the calls.
          per_step: thing.step() is called once after each optimizer.step();
            default: true for schedulers of this optimizer.

        Returns whether committed state was loaded. Call it before the loop.
        """
        if per_step is None:
            per_step = getattr(thing, "optimizer", None) is self and \
                not isinstance(
                    thing, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if self.session.resumed:
            for group, values in zip(self.param_groups, self._held):
                group.update(values)
        return self._state.track(thing, name, per_step)

    def clip_grad_norm_(self, max_norm: float, *, cursor: bytes = b"",
                        timeout: Optional[float] = None) -> torch.Tensor:
        """Returns the exact global norm of this step's mean gradient, which
        is clipped to `max_norm`, in place of gradient_clipping= and the same
        on all ranks. Hands the step over and waits for the commit: nothing
        may change the gradients between it and step()."""
        norm = _mistakes.norm_of_step(_hyper.plain(max_norm), self._clipping)
        if self._early is None:
            self._commit(cursor, timeout, wait=False, max_norm=norm)
            self._early = self.last_result
        assert self._early is not None
        return torch.tensor(self._early.grad_norm)

    def load_weights(self, *, reset_state: bool = False,
                     restart: bool = False,
                     timeout: Optional[float] = None) -> None:
        """Makes the model's present values (rank 0's, its buffers too) the
        job's weights, as after model.load_state_dict(). All ranks must call
        it, between steps. It takes a step's number, and that is the version
        of the new weights. Before the first step it takes none.

        Args:
          reset_state: the moments become zero; else they stay.
          restart: the job ends and starts again from these values, at step
            1 and with new moments; not within steps().
          timeout: seconds, instead of the optimizer's. After
            DeadlineExceeded the same call goes on waiting.
        """
        if self.session.gathers_weights:
            raise errors.FailedPrecondition(
                "load_weights() with weights that are not resident: load them "
                "into the model before the optimizer is built")
        _mistakes.check_between_steps(self._pending is not None,
                                      self._gradients.any_pushed)
        _mistakes.check_not_ddp(self._model, self._entries)
        if restart or self.session.open_step == 1:
            self._end_session()
            self._is_open = False
            _setup.until_closed(lambda: self._open("never"),
                                self.session.timeout)
            return
        assert isinstance(self._weights, Weights)
        self._weights.check_places()
        if self._overlap is not None:
            self._overlap.wait_all()
        self.last_result = self.session.load_weights(
            _weights.values(self._entries), reset_state=reset_state,
            cursor=self._state.with_present_buffers(self.session.cursor),
            timeout=timeout)
        self._weights.drop_edits()
        self._state.follow(lambda: self.session.rank0_cursor)
        self._state.loaded()
        self.zero_grad()

    def save(self, name: str = "", timeout: Optional[float] = None) -> str:
        """Keeps the whole job in the daemon's snapshots.directory, as
        ballast.Session.save. Any rank may call it, alone."""
        return self.session.save(name, timeout)

    def gathered(self, parameters: Optional[Iterable[Any]] = None) -> Any:
        """A context in which weights that are not resident are here, all or
        those of `parameters`: to look at them, or for model.state_dict().
        Where weights are resident it does nothing."""
        if isinstance(self._weights, _gathered.Gathered):
            return self._weights.gathered(parameters)
        return contextlib.nullcontext()

    def drop_edits(self) -> None:
        """Forgets in-place edits of weights; the published ones show."""
        self._weights.drop_edits()

    def detach(self, timeout: Optional[float] = None) -> None:
        """Leaves; the job is held. The model keeps the weights it has."""
        self._weights.freeze()
        self.session.detach(timeout)
        self._leave()

    def close(self, timeout: Optional[float] = None) -> None:
        """This rank has finished; the job ends when all have. The model
        keeps the weights it has, in ordinary memory."""
        if self._is_open:
            self._end_session(timeout)
            self._leave()

    # ---- Within. ----

    def _end_session(self, timeout: Optional[float] = None) -> None:
        if self._overlap is not None:
            self._overlap.detach()
        self._weights.freeze()
        self.session.close(timeout)

    def _leave(self) -> None:
        self._is_open = False
        _setup.live.discard(self)
        if self._model is not None:
            self._guard.remove()

    def _explain(self, entry: Entry, is_replaced: bool) -> Exception:
        return _mistakes.edited(self._model, self._entries, entry,
                                is_replaced, self._shapes[entry.name])

    def _check(self) -> None:
        if self._is_first_check:
            _mistakes.check_not_ddp(self._model, self._entries)
            self._is_first_check = False
        self._weights.check()
        _mistakes.check_requires_grad(self._entries)
        if self._model is not None:
            _mistakes.check_still_in(self._model, self._entries)
        self._weights.check_pages()

    def _scale(self) -> float:
        """The loss scale: GradScaler's for the time of its step()."""
        scaler = getattr(self, "grad_scale", None)
        scale = float(self.loss_scale if scaler is None else scaler)
        if not 0 < scale < float("inf"):
            raise errors.InvalidArgument(
                "loss_scale must be a finite number > 0, not %g" % scale)
        return scale

    def _push(self, entry: Entry) -> None:
        """During backward."""
        self._gradients.collect(entry, self._scale())
        self.session.push(entry.name)

    def _commit(self, cursor: bytes, timeout: Optional[float], wait: bool,
                max_norm: Optional[float] = None) -> None:
        self._check()
        if self._pending is None:
            scale = self._scale()
            for entry in self._trainable:
                if not self._gradients.is_pushed(entry):
                    self._gradients.collect(entry, scale)
            _hyper.send(self.param_groups, self._name, self.session)
            self._pending = self._state.encode(cursor)
            self._pending_user, self._pending_norm = cursor, max_norm
        elif cursor != self._pending_user:
            raise errors.InvalidArgument(
                "this step was already handed over with another cursor: "
                "repeat it with the same")
        self._gradients.check_pushed(self._trainable)
        if isinstance(self._weights, _gathered.Gathered):
            self._weights.release_all()
        try:
            self.last_result = self.session.step(
                cursor=self._pending, wait=wait, timeout=timeout,
                max_norm=self._pending_norm)
        except errors.Error as error:
            if error.resume_step is not None:
                self._is_repeat = True
                self._weights.drop_copy()
                self._forget()
            raise

    def _conclude(self) -> None:
        self._early = None
        self._weights.published()
        if self.session.cursor == self._pending:
            self._state.committed(self._pending_user)
        else:  # this rank's former worker gave the step
            self._state.adopt(self.session.cursor)
        self._state.follow(lambda: self.session.rank0_cursor)
        self._forget()
        if self._overlap is not None:
            self._overlap.committed()

    def _forget(self) -> None:
        """The step that was handed over is committed, or void."""
        self._pending = None
        self._gradients.forget_pushes()
        if self._overlap is not None:
            self._overlap.begin_step()
