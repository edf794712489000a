"""60 misuses of the command line: the right exit code, one clear line with a way forward, nothing on stdout."""

import json
import struct
import subprocess
import sys

import pytest
from PIL import Image

from arr_coc.cli.run import EXIT_BAD_INPUT, EXIT_NO_MODEL, EXIT_USAGE, run

Q = "what is this?"
SEE = "; see arr-coc"  # every mistake of usage names the help to read
MISUSES = [
    (["aks", Q], EXIT_USAGE, "Did you mean 'ask'", SEE),
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
    # What the command line learned later.
    (["env", "now"], EXIT_USAGE, "unexpected extra argument", SEE),
    (["ask", Q, "--temperature", "warm"], EXIT_USAGE, "'--temperature'", SEE),
    (["ask", Q, "--temperature", "-1"], EXIT_USAGE, "greater than or equal to 0", SEE),
    (["scenes", "make"], EXIT_USAGE, "Missing argument", SEE),
    (["ask", Q, "--keep", "0%"], EXIT_BAD_INPUT, "keep='0%'", "0.25"),
    (["ask", Q, "--keep", "many%"], EXIT_BAD_INPUT, "keep='many%'", "auto"),
    (["ask", Q, "--device", "tpu"], EXIT_BAD_INPUT, "device='tpu'", "cuda"),
    (["ask", Q, "--device", "cuda:x"], EXIT_BAD_INPUT, "device='cuda:x'", "cuda:1"),
    (["ask", Q, "--dtype", "int8"], EXIT_BAD_INPUT, "dtype='int8'", "bfloat16"),
    (["ask", Q, "--selector", "plain"], EXIT_BAD_INPUT, "chooses nothing", "--keep 1.0"),
    (["ask", Q, "--selector", "oracle"], EXIT_BAD_INPUT, "where the answer is", "arr-coc eval"),
    (["ask", Q, "--selector", "divprune:seed=1"], EXIT_BAD_INPUT, "no setting 'seed'", "it has none"),
    (["ask", Q, "--selector", "random:seed"], EXIT_BAD_INPUT, "'random:seed'", "NAME:KEY=VALUE"),
    (["ask", "-", "-", Q], EXIT_BAD_INPUT, "- twice", "as files"),
    (["ask", "-"], EXIT_BAD_INPUT, "- is an image without a question", "in quotes"),
    (["ask", "good.png", "what is it?", "good.png", "and this?"], EXIT_BAD_INPUT, "between images", "arr-coc batch"),
    (["ask", "some/where/no.png", Q], EXIT_BAD_INPUT, "arr-coc: some/where/no.png: no such", "check the path"),
    (["ask", "./good.png", Q, "--overlay", "./good.png"], EXIT_BAD_INPUT, "good.png is the image", "another name"),
    (["ask", "cut.gif", Q], EXIT_BAD_INPUT, "cut.gif: the image is damaged", "export it again"),
    (["ask", "cut.tiff", Q], EXIT_BAD_INPUT, "cut.tiff: the image is damaged", "export it again"),
    (["ask", "huge.bmp", Q], EXIT_BAD_INPUT, "over 50 megapixels", "resize it first"),
    (["ask", Q, "--model", "./nowhere"], EXIT_NO_MODEL, "'./nowhere'", "give mini"),
    (["chat", "-"], EXIT_BAD_INPUT, "where chat reads its questions", "as a file"),
    (["show", Q, "--only", "nothing"], EXIT_BAD_INPUT, "--only nothing", "homunculus"),
    (["show", "good.png", "good.png", Q], EXIT_BAD_INPUT, "2 images", "give one"),
    (["compare", Q, "--selector", "best"], EXIT_BAD_INPUT, "selector='best'", "look_twice"),
    (["eval", "--data", "jsonl:no-such.jsonl"], EXIT_BAD_INPUT, "no-such.jsonl: no such file", "check the path"),
    (["eval", "--metric", "bleu"], EXIT_BAD_INPUT, "metric='bleu'", "anls"),
    (["bench", "--shape", "qwen9"], EXIT_BAD_INPUT, "shape='qwen9'", "qwen3-vl-2b"),
    (["tune", "--data", "csv:rows.csv"], EXIT_BAD_INPUT, "unknown source 'csv:rows.csv'", "jsonl:FILE.jsonl"),
    (["tune", "--metric", "short"], EXIT_BAD_INPUT, "metric='short'", "contains"),
    (["serve", "--keep", "9.5"], EXIT_BAD_INPUT, "keep=9.5", "0.25"),
]


def test_there_are_at_least_60():
    assert len(MISUSES) >= 60


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the commands are typed: a good image, and files that are none."""
    Image.new("RGB", (64, 64), "teal").save(tmp_path / "good.png")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "cut.gif").write_bytes(b"GIF89a\x40\0\x40\0\0\0\0")
    (tmp_path / "cut.tiff").write_bytes(b"II*\0\x08\0\0\0")
    (tmp_path / "huge.bmp").write_bytes(b"BM" + bytes(12) + struct.pack("<Iii", 40, 10_000, 10_000) + bytes(28))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("arguments", "code", "says", "way"), MISUSES, ids=[" ".join(m[0])[:60] for m in MISUSES])
def test_a_misuse_is_told(arguments, code, says, way, folder, capfd):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert run(arguments) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert says in err
    assert way in err
    assert "Traceback" not in err
    if not err.startswith("Usage:"):  # no words at all: the help
        assert err.startswith("arr-coc: ")
        assert err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_mistake_is_told_before_torch_is_imported(folder):
    """All of them in one process: none needs what takes seconds to import."""
    program = "import json, sys; from arr_coc.cli.run import run; [run(one) for one in json.loads(sys.argv[1])]; "
    program += "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    typed = json.dumps([arguments for arguments, *_ in MISUSES])
    done = subprocess.run([sys.executable, "-c", program, typed], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
