"""The loop of a selector's training: batches in; steps, checkpoints and evaluations out."""

import contextlib
import dataclasses
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from arr_coc.comparing import is_out_of_memory
from arr_coc.data.examples import FileExamples
from arr_coc.files import write_json
from arr_coc.qwen.adapting import ADAPTED, save_adapted, weights_hash
from arr_coc.qwen.loading import travelling
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.storage import save_adapter
from arr_coc.training.checkpoints import (
    RUN,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
    told_if_not_saved,
)
from arr_coc.training.data import Draw, LeftOut, draw_examples, make_data, stream_batches
from arr_coc.training.groups import GridGroup
from arr_coc.training.learning import BadStep, Learning, Means
from arr_coc.training.room import NoRoom
from arr_coc.training.watching import Clock, Report, Watcher

FILES = ("weights", "optimizer")  # of a checkpoint
BAD_BATCH = "bad-batch.json"
LOWER = "start anew with a lower learning_rate"
FIRST_SAVE = 20.0  # seconds after which there is a checkpoint, however seldom they are made
AGAIN = 1.0  # seconds between two presses of Ctrl-C; a launcher may pass on one press as several
# Ctrl-C, the wish of the system, and a terminal that closes; not all of them are everywhere.
ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class NotFinite(ValueError):
    """A loss or a weight that is not a number: the run has stopped, and what it was made from is written down."""


class Stop:
    """Whether somebody pressed Ctrl-C, or the system asks to end: the step in hand is finished and saved.

    A second press does not wait.
    """

    def __init__(self) -> None:
        self.asked = False
        self._first = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for one in ENDING:
                if one is signal.SIGINT or signal.getsignal(one) is not signal.SIG_IGN:  # as `nohup` has it
                    self._before[one] = signal.signal(one, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for one, before in self._before.items():
            signal.signal(one, before or signal.SIG_DFL)

    def _ask(self, *_: object) -> None:
        now = time.monotonic()
        if self.asked and now - self._first > AGAIN:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked, self._first = True, now


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """Folders of a run."""

    out: Path
    init_from: Path | None = None
    """Folder of an adapter to start from; None: a fresh one."""

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"


class Due:
    """Whether more than so many seconds have passed since the last time."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.since = seconds, time.monotonic()

    def __call__(self) -> bool:
        return time.monotonic() - self.since > self.seconds

    def again(self) -> None:
        self.since = time.monotonic()


class Run:
    """One training run in this process: where it stands, and what it needs to go on."""

    def __init__(
        self,
        learning: Learning,
        places: Places,
        clock: Clock,
        report: Report | None,
        draw: Draw = draw_examples,
        examples: FileExamples | None = None,
    ) -> None:
        """`report` is None in all processes but the main one; `examples` as `make_data` takes them."""
        self.learning, self.places, self.clock, self.report = learning, places, clock, report
        config, team, made = self.config, self.team, self.made = learning.config, learning.team, learning.made
        self.name: str | None = secrets.token_hex(8)  # stays, however often the run goes on
        self.step = 0  # optimizer steps so far
        self.taken = 0  # batches so far, those of all processes together: the position in the data
        self.rows = 0  # questions of this process since the last line about them
        self.base = self._hash_base()
        self.data = make_data(config, made.owner, self.tell, draw, examples)
        self.watcher = Watcher(made.owner, self.data.held, places.out)
        self.left_out = LeftOut(self.data, config.max_broken, self.tell)
        if team.is_main:
            self.left_out.list_rows(places.out)
        for group in self.data.held:
            self.left_out.note(group)

    def _hash_base(self) -> str:
        """Of the model without what learns: stage 2 may put adapters beside its weights."""
        return weights_hash(self.made.owner.model, skip_adapters=self.config.stage == 2)

    # ---------------------------------------------------------------- the loop

    def go(self, stop: Stop) -> bool:
        """Steps until the plan is fulfilled or somebody asks to stop; returns whether somebody did."""
        config, team = self.config, self.team
        per_step = config.accumulate * team.count
        left = 10**12 if config.seconds else max(0, config.steps - self.step) * per_step
        numbers = range(self.taken + team.index, self.taken + left, team.count)  # of this process among all
        stream = stream_batches(self.data.batches, numbers, config.workers, pin=team.device.type == "cuda")
        log, look, save = Due(config.log_every), Due(config.evaluate_every), Due(config.checkpoint_every)
        save.since -= max(0.0, config.checkpoint_every - FIRST_SAVE)
        first = self.step
        self.clock.start()
        with contextlib.closing(stream):
            pairs = zip(numbers, stream, strict=False)
            while True:
                progress, stopping = self._agree(stop)
                if stopping or progress >= 1.0:
                    return stopping
                batches = self._next(pairs)
                for group in (group for _, batch in batches for group in batch):
                    self.rows += len(group.examples)
                    self.left_out.note(group)
                found = self._learn(batches, progress)
                self.step, self.taken = self.step + 1, self.taken + per_step
                if log():
                    self._log(first, found, time.monotonic() - log.since)
                    log.again()
                if config.evaluate_every and look():
                    self.evaluate()
                    look.again()
                if save():
                    self.save()
                    save.again()

    def _next(self, pairs: Iterator[tuple[int, list[GridGroup]]]) -> list[tuple[int, list[GridGroup]]]:
        """The batches of a step. Where the system killed what makes them, all is saved, and the run stops."""
        try:
            return [next(pairs) for _ in range(self.config.accumulate)]
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            self.save()
            raise NoRoom(
                f"a worker was killed, as where memory is short; step {self.step} is saved: repeat the command with "
                f"--workers {self.config.workers // 2}"
            ) from None

    def _agree(self, stop: Stop) -> tuple[float, bool]:
        """Progress by the main process's clock, and whether anyone asked to stop: all leave the loop together."""
        here = self.clock.progress(self.step) if self.team.is_main else 0.0
        progress, asked = self.team.sums([here, float(stop.asked)])
        return progress, asked > 0

    def _learn(self, batches: list[tuple[int, list[GridGroup]]], progress: float) -> Means:
        """One step. Where it fails, its examples are written down, the state before it is saved, and the run stops."""
        try:
            return self.learning.learn(self.step, batches, progress)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or self.team.count > 1:
                raise
            self.save()
            raise NoRoom(
                f"out of memory; step {self.step} is saved: repeat the command with "
                f"--cells-per-batch {max(1, self.config.cells_per_batch // 2)}"
            ) from None
        except BadStep as bad:
            if self.team.is_main:
                losses = {name: repr(value) for name, value in bad.found.items()}
                content = {"step": self.step, "losses": losses, "examples": bad.names}
                write_json(self.places.out / BAD_BATCH, content, indent=2)
            self.save()
            raise NotFinite(
                f"a loss or its gradient is not finite at step {self.step}: its examples are in {BAD_BATCH}; "
                f"mend or remove them and repeat the command, or {LOWER}"
            ) from None

    # ---------------------------------------------------------------- what is said

    def tell(self, line: str, **values: Any) -> None:
        """A line for people and one for machines, from the main process alone."""
        if self.report is not None:
            self.report(line, **values)

    def _log(self, first: int, found: Means, seconds: float) -> None:
        progress, left = self.clock.progress(self.step), self.clock.seconds_left(self.step, first)
        pace = self.rows * self.team.count / max(1e-9, seconds)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in found.items() if value)
        time_left = f"{left // 60:.0f}:{left % 60:02.0f}"
        self.tell(
            f"step {self.step}  {progress:4.0%}  {shown}  {pace:.0f} questions/s  left {time_left}",
            step=self.step,
            progress=round(progress, 4),
            rate=self.made.optimizer.param_groups[0]["lr"],
            questions_per_second=round(pace, 1),
            **found,
        )
        self.rows = 0

    def evaluate(self) -> dict[str, Any]:
        """Recall on what was held back, and a picture of the same six examples every time; in the main process."""
        if self.report is None or not self.watcher.held:
            return {}
        found = self.watcher.look(self.step)
        recalls = ", ".join(f"{value:.3f} at {keep:.0%}" for keep, value in (found["recall"] or {}).items())
        line = f"recall {recalls or 'not known without boxes'}; auto keeps {found['auto_keep']:.1%}"
        self.tell(line, step=self.step, held=found)
        return found

    # ---------------------------------------------------------------- files

    def save(self) -> None:
        """Full state into the checkpoints, complete or not at all. Weights that are not finite are never saved."""
        if not self.learning.all_finite():
            raise NotFinite(
                f"the weights are not finite at step {self.step} and were not saved: repeat the command to go on from "
                f"the last checkpoint, or {LOWER}"
            )
        if not self.team.is_main:
            return
        names = self.made.names
        weights = {name: parameter.detach() for parameter, name in names.items()}
        groups = dict(zip(FILES, (weights, optimizer_tensors(self.made.optimizer, names)), strict=True))
        state = {
            RUN: self.name,
            "step": self.step,
            "taken": self.taken,
            "trained": self.clock.trained(),
            "strategy": self.made.strategy_state(),
            "base": self.base,
            "config": dataclasses.asdict(self.config),
        }
        save_checkpoint(self.places.checkpoints, self.step, groups, state)

    def restore(self, checkpoint: Path, state: dict[str, Any]) -> None:
        """Put a checkpoint back. Random numbers have no state: they depend on the seed and the batch's number alone."""
        if state["base"] != self.base:
            raise ValueError("the model's own weights are not those that this run began with: give the same model")
        groups, _ = load_checkpoint(checkpoint, self.team.device)
        different = set(self.made.names.values()) ^ set(groups["weights"])
        assert not different, f"checkpoint and model do not both have {sorted(different)[:3]}"
        with torch.no_grad():
            for parameter, name in self.made.names.items():
                parameter.copy_(groups["weights"][name])
        restore_optimizer(self.made.optimizer, self.made.names, groups["optimizer"])
        self.made.restore_strategy(state["strategy"])
        self.name, self.step, self.taken = state.get(RUN), int(state["step"]), int(state["taken"])

    def finish(self) -> dict[str, Any]:
        """Proof that the base is as it was, the adapter into the run's folder, and a last evaluation."""
        config, owner = self.config, self.made.owner
        if config.stage != 2 or config.adapt in ("none", "lora"):
            after = self._hash_base()
            if after != self.base:
                raise RuntimeError("the model's own weights have changed, though this stage must not touch them")
            self.tell(f"base unchanged, sha256 {after[:16]}", base_unchanged=True, base_sha256=after)
        if not self.team.is_main:
            return {}
        with told_if_not_saved("the adapter"):
            settings = dataclasses.replace(owner.arr_coc_config, trained=True, straight_through=False)
            save_adapter(self.places.out, travelling(settings), owner.layer)
            self._save_adapted(owner)
        found = self.evaluate()
        if found.get("recall"):
            shares = ", ".join(f"{value:.3f} of {keep:.0%}" for keep, value in found["recall"].items())
            told = (
                f"recall of the evidence of {self.watcher.questions} questions held back, by the share kept: {shares}"
            )
            with told_if_not_saved("the adapter's figures"):
                save_adapter(self.places.out, travelling(dataclasses.replace(settings, figures=told)), owner.layer)
        return found

    def _save_adapted(self, owner: ARRCOCQwen) -> None:
        """What the model itself has learned, in this stage 2 or in the one that this run started from."""
        config, folder = self.config, self.places.out / ADAPTED
        if config.stage == 2 and config.adapt != "none":
            save_adapted(owner.model, config.adapt, folder)
        elif self.places.init_from is not None and (self.places.init_from / ADAPTED).is_dir():
            shutil.copytree(self.places.init_from / ADAPTED, folder, dirs_exist_ok=True)
