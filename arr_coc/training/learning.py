"""One optimizer step over the groups of several batches, in one process or in many.

What it learns is the mean over all rows that a loss counts, however they were put into groups, batches and processes.

Several processes (Accelerate) train one model: the main process alone looks at the clock and writes files. The others
learn from it before every step whether to go on, and wait there while it saves or evaluates. With one process nothing
is exchanged.
"""

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object
from torch import nn

from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.groups import GridGroup
from arr_coc.training.making import Makings, rate_groups
from arr_coc.training.step import counted_rows

NOT_A_LOSS = "right"  # the share of right answers, reported beside the losses
GROUPS_PER_BATCH = 4096  # at most: seeds of two batches never meet
PLAIN = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)

Numbered = tuple[int, list[GridGroup]]  # a batch, and its number
Means = dict[str, float]  # of each loss


class Team:
    """This process among those that `accelerate launch` started; alone where it did not."""

    def __init__(self, device: str | None = None) -> None:
        """`device` "cpu" leaves a GPU alone. Precision is a setting of the run, not one of `accelerate config`."""
        # Without a GPU, Accelerate connects processes only if it is told that they shall use the CPU.
        cpu = device == "cpu" or not torch.cuda.is_available()
        self._accelerator = Accelerator(cpu=cpu, mixed_precision="no")
        self.count = int(self._accelerator.num_processes)
        self.index = int(self._accelerator.process_index)  # of this process, from 0
        self.is_main = bool(self._accelerator.is_main_process)
        device_here = torch.device(self._accelerator.device)  # Accelerate numbers CPUs, which safetensors does not take
        self.device = torch.device("cpu") if device_here.type == "cpu" else device_here
        kind = self._accelerator.distributed_type
        if kind not in PLAIN:
            raise ValueError(f"accelerate launch with {kind.value}: a selector is trained with plain processes only")
        launched = int(os.environ.get("WORLD_SIZE", "1"))
        if self.count != launched:  # each would train alone, and all would write into one folder
            raise ValueError(f"WORLD_SIZE={launched}, but {self.count} is connected: start with accelerate launch")

    def wrap(self, learner: nn.Module) -> Any:
        """The module to call: its backward pass takes the mean of the gradients over processes."""
        return self._accelerator.prepare(learner)

    def apart(self, learner: Any) -> AbstractContextManager[Any]:
        """Within this, gradients add up in each process without being exchanged."""
        return self._accelerator.no_sync(learner)

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each of the values, added up over processes. All must call it."""
        if self.count == 1:
            return list(values)
        here = torch.tensor(values, dtype=torch.float64, device=self.device)
        return list(self._accelerator.reduce(here, reduction="sum").tolist())

    def anyone(self, here: bool) -> bool:
        """Whether it is so in any process. All must call it."""
        return self.sums([float(here)])[0] > 0

    def gathered(self, items: list[Any]) -> list[Any]:
        """The items of all processes in their order. All must call it."""
        return list(items) if self.count == 1 else list(gather_object(items))

    def end(self) -> None:
        """Wait for all, then part."""
        self._accelerator.wait_for_everyone()
        self._accelerator.end_training()


class BadStep(Exception):
    """A loss or gradient that is not finite. Weights, optimizer and strategy are as they were before the step."""

    def __init__(self, names: list[str], found: Means) -> None:
        super().__init__(f"{len(names)} examples")
        self.names, self.found = names, found


class Learning:
    """What learns, and how it takes a step."""

    def __init__(self, config: SelectorTrainConfig, team: Team, made: Makings) -> None:
        self.config, self.team, self.made = config, team, made
        self.parameters = list(made.names)
        self.learner = team.wrap(made.learner)

    def learn(self, step: int, batches: list[Numbered], progress: float) -> Means:
        """Learn from some numbered batches; returns the mean of each loss over the rows of this process."""
        config, team, optimizer = self.config, self.team, self.made.optimizer
        rate_groups(optimizer, config, step, progress)
        before = self.made.strategy_state()
        placed = [(number, place, group) for number, batch in batches for place, group in enumerate(batch)]
        seeded = [(_seed(config.seed, number, place), group) for number, place, group in placed]
        counts = [counted_rows(group, config) for _, group in seeded]
        here = {name: sum(count[name] for count in counts) for name in counts[0]}
        everywhere = dict(zip(here, team.sums(list(here.values())), strict=True))
        found: Means = {}
        bad: list[GridGroup] = []
        for order, ((seed, group), count) in enumerate(zip(seeded, counts, strict=True)):
            # The exchange of gradients takes their mean over processes: hence their number in the share.
            share = {name: team.count * count[name] / max(everywhere[name], 1e-12) for name in count}
            values = self._backward(group, seed, progress, share, last=order + 1 == len(seeded))
            for name, value in values.items():
                found[name] = found.get(name, 0.0) + value * count[name] / max(here[name], 1e-12)
            if not all(math.isfinite(value) for value in values.values()):
                bad.append(group)
        length = float(torch.nn.utils.clip_grad_norm_(self.parameters, config.clip))
        if team.anyone(bool(bad) or not math.isfinite(length)):
            optimizer.zero_grad(set_to_none=True)
            self.made.restore_strategy(before)
            raise BadStep(self._names(bad, [group for _, group in seeded]), found)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self._agree_on_strategy()
        return found

    def _backward(self, group: GridGroup, seed: int, progress: float, share: Means, last: bool) -> Means:
        """Add the gradients of a group, each loss by its share; they are exchanged with the last group alone."""
        with nullcontext() if last else self.team.apart(self.learner):
            losses = self.learner(group.to(self.team.device), seed, progress)
            total: Any = sum(value * share[name] for name, value in losses.items() if name != NOT_A_LOSS)
            if last and self.team.count > 1:  # all are exchanged, also what this group did without
                total = total + 0 * sum(parameter.sum() for parameter in self.parameters)
            total.backward()
        values = torch.stack([value.detach().float() for value in losses.values()]).tolist()
        return dict(zip(losses, values, strict=True))

    def _names(self, bad: list[GridGroup], groups: list[GridGroup]) -> list[str]:
        """Names of the examples to blame, of all processes: where all losses are finite, those of the whole step."""
        blamed = bad if self.team.anyone(bool(bad)) else groups
        return self.team.gathered([example.name for group in blamed for example in group.examples])

    def _agree_on_strategy(self) -> None:
        """What a strategy remembers (reinforce: how often answers are right) becomes the mean over processes."""
        state = self.made.strategy_state()
        if state and self.team.count > 1:
            sums = self.team.sums(list(state.values()))
            self.made.restore_strategy({name: total / self.team.count for name, total in zip(state, sums, strict=True)})

    def all_finite(self) -> bool:
        """Whether every weight that learns is a number."""
        return all(bool(parameter.isfinite().all()) for parameter in self.parameters)


def _seed(seed: int, number: int, place: int) -> int:
    """Of what is drawn for a group: by the batch's number and its place there, so the same in any process."""
    return ((seed * 1_000_003 + number) * GROUPS_PER_BATCH + place) % 2**63
