"""Serving the page: loopback unless asked otherwise, nothing from outside, every limit set."""

import atexit
import ipaddress
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from typing import Any

# Before Gradio is imported: it tells nobody of its use, and does not sum up all events so far after each one.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = str(10**9)

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arr_coc.demo.models import Models
from arr_coc.demo.page import build_page
from arr_coc.demo.parts import CSS, THEME
from arr_coc.images.reader import MOST_BYTES

MOST_WAITING = 32  # questions in the queue; the next one is told to come back
MOST_THREADS = 8  # one question at a time, and some for the rest; every thread holds memory of its own
MOST_SESSIONS = 64  # browsers whose last look is remembered
# The browser itself refuses to load anything from another place than this server.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; object-src 'none'; base-uri 'self'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


class SafeHeaders:
    """Adds the headers above to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        await self.app(scope, receive, send_with_headers)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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


def serve(models: Models, host: str, port: int, *, open_browser: bool = False, wait: bool = True) -> Any:
    """Serve the page, until it is ended if `wait`; returns the page, whose `local_url` says where it is."""
    _use_private_folder()
    page = build_page(models)
    page.queue(max_size=MOST_WAITING, default_concurrency_limit=4, api_open=False)
    page.launch(
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
        app_kwargs={"middleware": [Middleware(SafeHeaders)]},
    )
    if wait:
        _wait(page)
    return page


def _wait(page: Any) -> None:
    """Until Ctrl-C, or until the system asks to end; the port and the files are given back either way."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        threading.Event().wait()
    finally:
        page.close(verbose=False)


def _use_private_folder() -> None:
    """Uploads and pictures lie in a folder that only this user can read, and that goes with the process."""
    folder = tempfile.mkdtemp(prefix="arr-coc-demo-")
    os.environ["GRADIO_TEMP_DIR"] = folder
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
