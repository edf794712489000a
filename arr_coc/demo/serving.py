"""Serving the page: loopback unless asked otherwise, nothing from outside, every limit set."""

import atexit
import ctypes
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from typing import Any

# Before Gradio is imported: it tells nobody of its use, and does not sum up all events so far after each one.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = str(10**9)

from starlette.middleware import Middleware

from arr_coc.demo.guarding import FairQueue, Gate, Guard, Hurried, is_loopback
from arr_coc.demo.models import Models
from arr_coc.demo.page import build_page
from arr_coc.demo.parts import CSS, THEME
from arr_coc.images.reader import MOST_BYTES

MOST_WAITING = 32  # questions in the queue; the next one is told to come back
MOST_THREADS = 8  # one question at a time, and some for the rest; every thread holds memory of its own
MOST_SESSIONS = 64  # browsers whose last look is remembered
MOST_CONNECTIONS = 512
PASSWORD = "ARR_COC_DEMO_PASSWORD"  # the variable that holds it: a command line can be read by others
LEAST_PASSWORD = 12  # characters
M_ARENA_MAX = -8  # of the C library's mallopt


def check_port(host: str, port: int) -> None:
    """Refuse a port or an address that cannot be listened on, before anything is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except socket.gaierror:
            raise ValueError(f"--host {host}: no such address; leave it out to stay on this machine") from None
        except OSError as error:
            raise ValueError(f"port {port} of {host}: {error.strerror}; give another with --port") from None


def check_password(host: str, password: str | None) -> None:
    """Whoever reaches the page uses this machine: from elsewhere, only with a password."""
    if password is not None and len(password) < LEAST_PASSWORD:
        raise ValueError(f"the password has {len(password)} characters: give one of {LEAST_PASSWORD} or more")
    if password is None and not is_loopback(host):
        raise ValueError(f"--host {host} can be reached by others: set a password in {PASSWORD}, or leave --host out")


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
        check_password(host, password)
    if wait:
        _heed_signals()
    _use_private_folder()
    _share_memory()
    page = build_page(models)
    page.queue(max_size=MOST_WAITING, default_concurrency_limit=4, api_open=False)
    gate = Gate(local=is_loopback(host))
    FairQueue.take_over(page._queue, gate)
    page.launch(
        auth=None if password is None else lambda _, given: secrets.compare_digest(given.encode(), password.encode()),
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
    served = page.server.config  # read anew for every connection
    served.limit_concurrency = MOST_CONNECTIONS
    served.http_protocol_class = type("HurriedProtocol", (Hurried, served.http_protocol_class), {})
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
