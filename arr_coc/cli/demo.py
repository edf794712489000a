"""arr-coc demo: ask, compare and look closer in the browser."""

import os
from importlib.util import find_spec
from typing import Annotated

import typer

from arr_coc.cli import typed
from arr_coc.cli.checks import check_model
from arr_coc.cli.terminal import quieten_libraries, teller


def demo(
    model: Annotated[
        typed.Texts, typer.Option(help=f"{typed.MODELS}; several times to compare them. [default: mini]")
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; this machine alone if left as it is. Another needs a password."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 7860,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    quiet: typed.Quiet = False,
    offline: typed.Offline = False,
) -> None:
    """Ask, compare and look closer in the browser.

    arr-coc demo --open

    arr-coc demo --model mini --model Qwen/Qwen3-VL-2B-Instruct --port 7861

    ARR_COC_DEMO_PASSWORD="a long password" arr-coc demo --host 0.0.0.0
    """
    if find_spec("gradio") is None:
        raise ValueError("the demo needs Gradio: pip install 'arr-coc[demo]'")
    for one in model or ():
        check_model(one)
    from arr_coc.demo.models import Models
    from arr_coc.demo.serving import PASSWORD, serve
    from arr_coc.gateway import check_port, check_secret

    check_port(host, port)
    password = os.environ.get(PASSWORD) or None
    check_secret(host, password, "password", PASSWORD)
    say = teller(quiet)
    if quiet:
        quieten_libraries(bars=False)
    models = Models(model or ["mini"])
    with models.use(models.names[0]):  # loaded now, so that a wrong name ends here and the first answer is quick
        pass
    say(f"the demo is at http://{f'[{host}]' if ':' in host else host}:{port} (Ctrl-C ends it)")
    serve(models, host, port, password=password, open_browser=open_browser)
