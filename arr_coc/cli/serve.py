"""arr-coc serve and demo: answer over HTTP, in the form of OpenAI's API, or on a page in the browser."""

import os
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from arr_coc.cli import typed
from arr_coc.cli.checks import check_model, check_selector
from arr_coc.cli.terminal import note, quieten_libraries, set_verbosity, teller

KEY = "ARR_COC_API_KEY"  # the variable that holds it: a command line can be read by others
ENGINES = ("auto", "plain", "vllm")
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")]


def serve(
    model: typed.Model = "mini",
    keep: typed.KeepDial = None,
    selector: typed.SelectorName = "auto",
    encoding: typed.Encoding = None,
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="auto (vllm with CUDA, if it is there), plain or vllm.")
    ] = "auto",
    host: Annotated[
        str, typer.Option(help="Address to listen on; this machine alone if left as it is. Another needs a key.")
    ] = "127.0.0.1",
    port: Port = 8000,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", envvar=KEY, help="What clients send as their API key.")
    ] = None,
    allow_media_domains: Annotated[
        typed.Texts,
        typer.Option(metavar="HOST", help="Fetch images from this host too; may be repeated. If left out: none."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=64, help="Questions answered together at most (plain).")] = 8,
    queue: Annotated[
        int, typer.Option(min=1, max=64, help="Requests at once at most; others are told to wait (plain).")
    ] = 32,
    max_images: Annotated[int, typer.Option(min=1, max=8, help="Images of a request at most.")] = 8,
    max_megapixels: Annotated[int, typer.Option(min=1, max=100, help="Megapixels of its images at most (plain).")] = 16,
    max_tokens: Annotated[int, typer.Option(min=1, max=131_072, help="Tokens of an answer at most.")] = 1024,
    max_body: Annotated[int, typer.Option(min=1, max=256, help="Megabytes of a request at most.")] = 32,
    quiet: typed.Quiet = False,
    offline: typed.Offline = False,
) -> None:
    """Answer over HTTP in the form of OpenAI's API, waiting requests together.

    arr-coc serve

    arr-coc serve --model Qwen/Qwen3-VL-2B-Instruct --keep 0.25 --port 8001

    arr-coc serve --engine vllm

    ARR_COC_API_KEY="a long key" arr-coc serve --host 0.0.0.0 --allow-media-domains images.example.org
    """
    chosen = pick_engine(engine)
    dial = None if keep is None else typed.parse_keep(keep)
    check_selector(selector, encoding)
    check_model(model, quiet)
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise ValueError("the server needs FastAPI and uvicorn: pip install 'arr-coc[serve]'")
    from arr_coc.gateway import check_port, check_secret, is_loopback

    check_port(host, port)
    check_secret(host, api_key, "key", KEY)
    set_verbosity(quiet)
    name, tell = Path(model).absolute().name if Path(model).exists() else model, teller(quiet)
    address = f"{address_of(host, port)}/v1"
    domains = tuple(allow_media_domains or ())
    if chosen == "vllm":
        from arr_coc.vllm import engine_arguments, gate, server_command, variables

        how = engine_arguments(model, dial or "auto", selector=selector, encoding=encoding, images=max_images)
        words = server_command(how, name, host, port, max_tokens, domains)
        own = {gate.LIMIT: str(max_body << 20), gate.LOCAL: str(int(is_loopback(host))), gate.KEY: api_key or ""}
        tell(shlex.join(words))
        tell(f"{name} will answer at {address} (Ctrl-C ends it)")
        os.execve(words[0], words, {**os.environ, **variables(), **own})
    from arr_coc.cli.loading import load
    from arr_coc.serving.app import Service
    from arr_coc.serving.app import serve as run
    from arr_coc.serving.engine import InProcessEngine
    from arr_coc.serving.line import Line
    from arr_coc.serving.metrics import Metrics
    from arr_coc.serving.reading import Limits

    loaded = load(model, selector, encoding, quiet=quiet)
    loaded.keep = loaded.keep if dial is None else dial
    limits = Limits(max_body << 20, max_images, max_megapixels * 10**6, max_tokens)
    line = Line(InProcessEngine(loaded), Metrics(), batch, queue)
    service = Service(line, name, limits, api_key, domains, is_loopback(host))
    tell(f"{name} answers at {address} (Ctrl-C ends it)")
    run(service, host, port)


def pick_engine(engine: str) -> str:
    """plain or vllm: "auto" is vLLM where the version that is known is here, with CUDA. Refuses what is not here."""
    if engine not in ENGINES:
        raise ValueError(f"--engine {engine}: give {', '.join(ENGINES)}")
    if engine == "plain":
        return engine
    from arr_coc.vllm import installed, trouble

    why = trouble()
    if engine == "vllm":
        if why:
            raise ValueError(f"--engine vllm: {why}; or leave --engine out")
        return engine
    if why:
        if installed():
            note(f"served plainly: {why}")
        return "plain"
    import torch

    return "vllm" if torch.cuda.is_available() else "plain"


def address_of(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def demo(
    model: Annotated[
        typed.Texts, typer.Option(help=f"{typed.MODELS}; several times to compare them. [default: mini]")
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; this machine alone if left as it is. Another needs a password."),
    ] = "127.0.0.1",
    port: Port = 7860,
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
    if quiet:
        quieten_libraries(bars=False)
    models = Models(model or ["mini"])
    with models.use(models.names[0]):  # loaded now, so that a wrong name ends here and the first answer is quick
        pass
    teller(quiet)(f"the demo is at {address_of(host, port)} (Ctrl-C ends it)")
    serve(models, host, port, password=password, open_browser=open_browser)
