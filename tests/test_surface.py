"""What can be reached: no module opens what could run code, and no address is fetched, however it is written."""

import ast
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from arr_coc.images.reader import read_image

ROOT = Path(__file__).parent.parent
MODULES = sorted(path for room in ("arr_coc", "arr_coc_scenes", "space") for path in (ROOT / room).rglob("*.py"))
OPENERS = {"pickle", "cPickle", "_pickle", "dill", "joblib", "marshal", "shelve", "yaml"}
RUNNERS = {"eval", "exec", "compile", "__import__"}  # of builtins
SHELLS = {("os", "system"), ("os", "popen"), ("torch", "load"), ("np", "load"), ("numpy", "load"), ("torch", "save")}
HOSTS = (
    *("127.0.0.1", "localhost", "LOCALHOST", "localhost.", "[::1]", "0.0.0.0", "169.254.169.254", "10.0.0.1"),
    *("172.16.0.1", "192.168.0.1", "2130706433", "0177.0.0.1", "0x7f000001", "0x7f.1", "127.1", "[::ffff:127.0.0.1]"),
    *("[64:ff9b::7f00:1]", "example.org", "EXAMPLE.org.", "user@127.0.0.1", "a:b@127.0.0.1", "example.org\\@127.0.0.1"),
    *("example.org#@127.0.0.1", "xn--e1afmkfd.org", "\u0435xample.org", "127.0.0.1:22", "127.0.0.1%2f", "%31%32%37.1"),
)
ADDRESSES = [
    *(f"{scheme}://{host}/a.png" for host in HOSTS for scheme in ("http", "HTTPS")),
    *("file:///etc/passwd", "FILE:/etc/passwd", "file://localhost/etc/passwd", "gopher://127.0.0.1/1", "ftp://a/b.png"),
    *("data:image/png;base64,AAAA", "data://text/plain,a", "jar:file:///a.jar!/b.png", "s3://bucket/a.png"),
    *("//127.0.0.1/a.png", "http:/127.0.0.1/a.png", "hf://a/b.png", "unix:/run/a.sock", " http://127.0.0.1/a.png"),
]


def calls_in(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Calls in a module, as they are written."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def wrong_in(path: Path) -> list[str]:
    """What a module does that no module may."""
    found = [name for name, _ in calls_in(path) if name in RUNNERS or tuple(name.split(".")) in SHELLS]
    for _, call in calls_in(path):
        told = {word.arg: ast.unparse(word.value) for word in call.keywords}
        found += [f"{name}=True" for name in ("shell", "trust_remote_code", "allow_pickle") if told.get(name) == "True"]
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [name for name in names if name.split(".")[0] in OPENERS]
    return found


def test_no_module_opens_what_could_run_code(record_property):
    record_property("tried", len(MODULES))
    assert len(MODULES) > 150
    assert {str(path): wrong_in(path) for path in MODULES if wrong_in(path)} == {}


@pytest.mark.parametrize(
    "code",
    [
        *("import pickle", "from yaml import load", "eval('1')", "exec(x)", "torch.load(file)", "os.system('ls')"),
        *("subprocess.run('ls', shell=True)", "A.from_pretrained(b, trust_remote_code=True)", "np.load(a)"),
    ],
)
def test_code_that_would_be_found(code, tmp_path):
    (tmp_path / "module.py").write_text(code)
    assert wrong_in(tmp_path / "module.py")


def test_no_address_is_fetched(monkeypatch, tmp_path, record_property):
    """Not one of them reaches for a socket, or for a file outside of what was named."""
    record_property("tried", len(ADDRESSES))
    monkeypatch.chdir(tmp_path)
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, lambda *_: pytest.fail("a connection"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a name is looked up"))
    assert len(set(ADDRESSES)) >= 60
    for address in ADDRESSES:
        with pytest.raises(ValueError, match=r"an address is not fetched|no such image file") as caught:
            read_image(address)
        assert str(caught.value).isprintable()
        assert not re.search(r"0x[0-9a-f]{6,}", str(caught.value))
    assert os.listdir(tmp_path) == []
