"""Several processes that train one model (Accelerate): what they add up, and what they must do together.

The main process alone looks at the clock and writes files. The others learn from it before every step whether to go
on, and wait there while it saves or evaluates. With one process nothing is exchanged.
"""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object
from torch import nn

PLAIN = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


class Team:
    """This process among those that `accelerate launch` started; alone where it did not."""

    def __init__(self, device: str | None = None) -> None:
        """`device` "cpu" leaves a GPU alone. Precision is a setting of the run, not one of `accelerate config`."""
        # Without a GPU, Accelerate connects processes only if it is told that they shall use the CPU.
        cpu = device == "cpu" or not torch.cuda.is_available()
        self._accelerator = Accelerator(cpu=cpu, mixed_precision="no")
        kind = self._accelerator.distributed_type
        if kind not in PLAIN:
            raise ValueError(f"accelerate launch with {kind.value}: a selector is trained with plain processes only")
        launched = int(os.environ.get("WORLD_SIZE", "1"))
        if self.count != launched:  # each would train alone, and all would write into one folder
            raise ValueError(f"WORLD_SIZE={launched}, but {self.count} is connected: start with accelerate launch")

    @property
    def device(self) -> torch.device:
        """Accelerate numbers CPUs, which safetensors does not take."""
        device = torch.device(self._accelerator.device)
        return torch.device("cpu") if device.type == "cpu" else device

    @property
    def count(self) -> int:
        """Number of processes."""
        return int(self._accelerator.num_processes)

    @property
    def index(self) -> int:
        """Number of this process, from 0."""
        return int(self._accelerator.process_index)

    @property
    def is_main(self) -> bool:
        return bool(self._accelerator.is_main_process)

    def wrap(self, learner: nn.Module) -> Any:
        """The module to call: its backward pass takes the mean of the gradients over processes."""
        return self._accelerator.prepare(learner)

    def apart(self, learner: Any) -> AbstractContextManager[Any]:
        """Within this, gradients add up in each process without being exchanged."""
        context: AbstractContextManager[Any] = self._accelerator.no_sync(learner)
        return context

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each of the values, added up over processes. All must call it."""
        if self.count == 1:
            return list(values)
        here = torch.tensor(values, dtype=torch.float64, device=self.device)
        added: list[float] = self._accelerator.reduce(here, reduction="sum").tolist()
        return added

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
