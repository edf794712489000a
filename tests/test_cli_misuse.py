"""30 misuses of the command line: the right exit code, one clear line with a way forward, nothing on stdout."""

import pytest
from PIL import Image

from arr_coc.cli.run import EXIT_BAD_INPUT, EXIT_NO_MODEL, EXIT_USAGE, run

Q = "what is this?"
SEE = "; see arr-coc"  # every mistake of usage names the help to read
MISUSES = [
    (["aks", Q], EXIT_USAGE, "Did you mean 'ask'", SEE),
    (["ask"], EXIT_USAGE, "Missing argument", SEE),
    (["ask", Q, "--kep", "0.5"], EXIT_USAGE, "No such option: --kep", "--keep"),
    (["ask", Q, "--keep"], EXIT_USAGE, "requires an argument", SEE),
    (["ask", Q, "--max-new-tokens", "many"], EXIT_USAGE, "'--max-new-tokens'", SEE),
    (["ask", Q, "--max-new-tokens", "0"], EXIT_USAGE, "greater than or equal to 1", SEE),
    (["ask", Q, "--seed", "-1"], EXIT_USAGE, "'--seed'", SEE),
    (["train"], EXIT_USAGE, "Usage: arr-coc train", "Examples:"),
    (["train", "selector", "--config", "no-such.json"], EXIT_USAGE, "no-such.json", SEE),
    (["ask", Q, "--keep", "0"], EXIT_BAD_INPUT, "keep=0", "0.25"),
    (["ask", Q, "--keep", "1"], EXIT_BAD_INPUT, "could mean", "give 1.0"),
    (["ask", Q, "--keep", "120%"], EXIT_BAD_INPUT, "keep='120%'", "0.25"),
    (["ask", Q, "--keep", "nan"], EXIT_BAD_INPUT, "keep=nan", "0.25"),
    (["ask", Q, "--selector", "best"], EXIT_BAD_INPUT, "selector='best'", "training_free"),
    (["ask", Q, "--selector", "random:seed=x"], EXIT_BAD_INPUT, "seed=x is no int", "random:seed=1"),
    (["ask", Q, "--encoding", "thin"], EXIT_BAD_INPUT, "encoding='thin'", "sparse"),
    (["ask", Q, "--selector", "fastv", "--encoding", "sparse", "--keep", "0.5"], EXIT_BAD_INPUT, "'fastv'", "dense"),
    (["ask", ""], EXIT_BAD_INPUT, "the question is empty", "ask something"),
    (["ask", "photo.png"], EXIT_BAD_INPUT, "without a question", "in quotes"),
    (["ask", Q, "photo.png"], EXIT_BAD_INPUT, "photo.png stands where the question goes", "images come first"),
    (["ask", "photo.png", "what", "is", "this?"], EXIT_BAD_INPUT, "what: no such image file", "in quotes"),
    (["ask", "no-such.png", Q], EXIT_BAD_INPUT, "no-such.png: no such image file", "check the path"),
    (["ask", "https://example.org/cat.png", Q], EXIT_BAD_INPUT, "cat.png", "download"),
    (["ask", ".", Q], EXIT_BAD_INPUT, "no such image file", "give the image itself"),
    (["ask", "notes.txt", Q], EXIT_BAD_INPUT, "notes.txt: not a readable", "convert it first"),
    (["ask", *["good.png"] * 9, Q], EXIT_BAD_INPUT, "9 images", "give 1 to 8"),
    (["ask", "good.png", Q, "--overlay", "good.png"], EXIT_BAD_INPUT, "good.png is the image", "another name"),
    (["ask", Q, "--overlay", "why.pdf"], EXIT_BAD_INPUT, "why.pdf", "end its name in .png"),
    (["ask", Q, "--model", "no-such-model"], EXIT_NO_MODEL, "'no-such-model'", "give mini"),
    (
        ["chat", "good.png", "--model", "nobody/nothing", "--offline"],
        EXIT_NO_MODEL,
        "'nobody/nothing'",
        "go online once",
    ),
]


def test_there_are_30():
    assert len(MISUSES) == 30


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the commands are typed: a good image, and a file that is none."""
    Image.new("RGB", (64, 64), "teal").save(tmp_path / "good.png")
    (tmp_path / "notes.txt").write_text("hello")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("arguments", "code", "says", "way"), MISUSES, ids=[" ".join(m[0])[:60] for m in MISUSES])
def test_a_misuse_is_told(arguments, code, says, way, folder, capfd):
    before = (folder / "good.png").read_bytes()
    assert run(arguments) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert says in err
    assert way in err
    assert "Traceback" not in err
    if not err.startswith("Usage:"):  # no words at all: the help
        assert err.startswith("arr-coc: ")
        assert err.count("\n") == 1
    assert (folder / "good.png").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["good.png", "notes.txt"]
