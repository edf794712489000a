"""The demo, served for a test: in this process, or by a command in a process of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from arr_coc.demo.models import Models
from arr_coc.demo.serving import serve


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def serving(models: Models) -> Iterator[str]:
    """The address of the running demo, without a slash at its end."""
    with models.use(models.names[0]):
        pass
    for left in (2, 1, 0):
        try:
            page = serve(models, "127.0.0.1", free_port(), wait=False)
            break
        except OSError:  # Gradio gives its server five seconds to start, and a free port may be gone by then
            if not left:
                raise
    try:
        yield page.local_url.rstrip("/")
    finally:
        page.close(verbose=False)


@contextmanager
def started(
    arguments: list[str], port: int, folder: Path, path: str = "/", **environment: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Address and process of `python ARGUMENTS`, once it answers; its temporary files go to folder/temporary."""
    (folder / "temporary").mkdir()
    own = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "temporary"), **environment}
    log = folder / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env=os.environ | own,
            stdout=written,
            stderr=written,
            preexec_fn=_heed_interrupts,
        )
        address, until = f"http://127.0.0.1:{port}", time.monotonic() + 120
        try:
            while not _answers(address + path):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.3)
            yield address, process
        finally:
            process.kill()
            process.wait()


def _heed_interrupts() -> None:
    """What runs in a shell's background inherits deafness to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
