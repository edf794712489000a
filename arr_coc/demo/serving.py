"""Serving the page: loopback unless asked otherwise, nothing from outside, every limit set."""

import atexit
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import threading
from contextlib import suppress
from typing import Any

# Before Gradio is imported: it tells nobody of its use, and does not sum up all events so far after each one.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = str(10**9)

from starlette.middleware import Middleware

from arr_coc.demo.guarding import FairQueue, Gate, Guard
from arr_coc.demo.models import Models
from arr_coc.demo.page import build_page
from arr_coc.demo.parts import CSS, THEME
from arr_coc.gateway import check_secret, hurry, is_loopback, is_secret
from arr_coc.images.reader import MOST_BYTES

MOST_WAITING = 32  # questions in the queue; the next one is told to come back
MOST_THREADS = 8  # one question at a time, and some for the rest; every thread holds memory of its own
MOST_SESSIONS = 64  # browsers whose last look is remembered
PASSWORD = "ARR_COC_DEMO_PASSWORD"  # the variable that holds it: a command line can be read by others
M_ARENA_MAX = -8  # of the C library's mallopt


def serve(
    models: Models,
    host: str,
    port: int,
    *,
    password: str | None = None,
    for_all: bool = False,
    open_browser: bool = False,
    wait: bool = True,
) -> Any:
    """Serve the page, until it is ended if `wait`; returns the page, whose `local_url` says where it is.

    For others than this machine it needs a password (with any user name), unless it is meant `for_all`.
    """
    if not for_all:
        check_secret(host, password, "password", PASSWORD)
    if wait:
        _heed_signals()
    _use_private_folder()
    _share_memory()
    page = build_page(models)
    page.queue(max_size=MOST_WAITING, default_concurrency_limit=4, api_open=False)
    gate = Gate(local=is_loopback(host))
    FairQueue.take_over(page._queue, gate)
    page.launch(
        auth=None if password is None else lambda _, given: is_secret(given, password),
        server_name=host,
        server_port=port,
        inbrowser=open_browser,
        max_threads=MOST_THREADS,
        prevent_thread_lock=True,
        share=False,
        quiet=True,
        show_error=False,  # only our own messages reach the page
        max_file_size=MOST_BYTES,
        allowed_paths=[],
        state_session_capacity=MOST_SESSIONS,
        enable_monitoring=False,
        run_history=False,
        mcp_server=False,
        ssr_mode=False,
        pwa=False,
        footer_links=[],
        theme=THEME,
        css=CSS,
        app_kwargs={"middleware": [Middleware(Guard, gate=gate)]},
    )
    hurry(page.server.config)
    if wait:
        _wait(page)
    return page


def _heed_signals() -> None:
    """The system asks to end, or the terminal closes (unless `nohup` says otherwise): what is open is closed."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: sys.exit(0))


def _wait(page: Any) -> None:
    """Until Ctrl-C, or until the system asks to end; the port and the files are given back either way."""
    try:
        threading.Event().wait()
    finally:
        page.close(verbose=False)


def _share_memory() -> None:
    """One pool for all threads: each would keep one of its own, with the room of its largest question."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def _use_private_folder() -> None:
    """Uploads and pictures lie in a folder that only this user can read, and that goes with the process."""
    folder = tempfile.mkdtemp(prefix="arr-coc-demo-")
    os.environ["GRADIO_TEMP_DIR"] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
