"""The same job by workers of Ray Data, on this machine or on a cluster: each holds a model of its own.

A worker that dies is started anew and its rows are asked again. Records come back to the process that writes them, so
that the file is the same, and goes on the same way, whoever answered.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from arr_coc.batch.asked import AskedRow
from arr_coc.batch.job import BatchJob, Desk
from arr_coc.batch.results import Record
from arr_coc.comparing import is_device_lost

HERE = "local"  # the address of no cluster: Ray is started on this machine, for this job
WRITTEN_FOR = "2.60.0"
BLOCK = 2  # batches that a worker is given at once: while one is answered, images of the next are read


def check_ray() -> None:
    """Refuse, in one line, where Ray is not there."""
    if find_spec("ray") is None:
        raise ValueError(f"--ray needs Ray {WRITTEN_FOR}: pip install 'arr-coc[ray]'")


class Worker:
    """In a process of its own: a desk that is given tables of rows and gives tables of records."""

    def __init__(self, job: BatchJob) -> None:
        self.desk = Desk(job)

    def __call__(self, table: Any) -> Any:
        import pyarrow

        rows = [AskedRow(**{**one, "image": tuple(one["image"])}) for one in map(json.loads, table["row"].to_pylist())]
        try:
            return pyarrow.table({"record": [json.dumps(record) for record in self.desk.answer(rows)]})
        except RuntimeError as error:
            if is_device_lost(error):
                os._exit(1)  # Ray starts another in its place
            raise


class Cluster:
    """Ray, as long as a job needs it. `workers` 0: one for each GPU, else for each core but one."""

    def __init__(self, job: BatchJob, address: str, workers: int = 0) -> None:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it is read when Ray is imported
        import ray
        import ray.data

        self.ray, self.job = ray, job
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == HERE:
            wanted = workers or os.cpu_count() or 1
            # One more than workers: Ray Data needs a core for its own.
            ray.init(num_cpus=wanted + 1, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
        found = ray.cluster_resources()
        self.gpus = int(found.get("GPU", 0))
        self.workers = workers or self.gpus or max(1, int(found.get("CPU", 2)) - 1)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False

    def answer(self, rows: Iterable[AskedRow]) -> Iterator[Record]:
        """The record of every row, as blocks of them are answered."""
        data, size = self.ray.data, BLOCK * self.job.batch
        items = [{"row": json.dumps(asdict(row))} for row in rows]
        if not items:
            return
        each: dict[str, Any] = {"num_gpus": 1} if self.gpus else {"num_cpus": 1}
        answered = (
            data.from_items(items)
            .repartition(target_num_rows_per_block=size)
            .map_batches(
                Worker,
                fn_constructor_args=(self.job,),
                batch_size=size,
                batch_format="pyarrow",
                compute=data.ActorPoolStrategy(size=min(self.workers, -(-len(items) // size))),
                **each,
            )
        )
        for table in answered.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield from map(json.loads, table["record"].to_pylist())

    def close(self) -> None:
        self.ray.shutdown()
