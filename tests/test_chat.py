"""arr-coc chat: from a pipe, with its commands, and at a terminal, where Ctrl-C stops an answer and not the chat."""

import builtins
import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny
from PIL import Image

from arr_coc.cli import loading
from arr_coc.cli.chat import COMMANDS
from arr_coc.cli.loading import load
from arr_coc.cli.run import run
from arr_coc.cli.typed import sample_image

ROOT = Path(__file__).parent.parent
HAND, WORD = "What colour is the hand?", "Which word is blue?"


@pytest.fixture(scope="module")
def mini():
    return load("mini")


class Recorder:
    """A tiny model that notes what it was asked with."""

    def __init__(self) -> None:
        self.model = tiny.wrapped(tiny.stock(), keep=0.5)
        self.asked: list[dict] = []
        ask = self.model.ask

        def noting(images, question, **options):
            self.asked.append({"images": [image.size for image in images], "question": question, **options})
            return ask(images, question, **options)

        self.model.ask = noting

    def load(self, *_: object, **__: object):
        return self.model


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    monkeypatch.setattr(loading, "load", made.load)
    return made


def talk(monkeypatch, lines: list[str], *options: str) -> int:
    """A whole chat, its lines from a pipe."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return run(["chat", *options])


def test_from_a_pipe_the_answers_alone_are_on_stdout(monkeypatch, mini, capsys):
    monkeypatch.setattr(loading, "load", lambda *_, **__: mini)
    assert talk(monkeypatch, [HAND, "", WORD, "/keep 64", HAND]) == 0
    out, err = capsys.readouterr()
    assert out == "green\nZEVORE\ngreen\n"
    assert "256 -> 16" in err
    assert "256 -> 64" in err  # chosen anew, with another budget
    assert "?" not in err  # no prompt
    assert talk(monkeypatch, [HAND, "/quit", WORD], "--quiet") == 0
    assert capsys.readouterr() == ("green\n", "")


def test_the_model_is_shown_the_conversation_if_asked_to(monkeypatch, recorder, capsys):
    options = ["--max-new-tokens", "3"]
    assert talk(monkeypatch, ["one", "two", "/reset", "three"], *options, "--history") == 0
    answers = [("one", text) for text in capsys.readouterr().out.split("\n")[:1]]
    histories = [asked["history"] for asked in recorder.asked]
    assert [[question for question, _ in history] for history in histories] == [[], ["one"], []]
    assert histories[1][0][0] == answers[0][0]
    recorder.asked.clear()
    assert talk(monkeypatch, ["one", "two"], *options, "--no-history") == 0
    assert [asked["history"] for asked in recorder.asked] == [[], []]


def test_mini_is_shown_single_questions(monkeypatch, recorder):
    """It never saw a second turn, and answers worse after a first."""
    monkeypatch.setattr("arr_coc.qwen.familiar.is_mini", lambda tokenizer: True)
    assert talk(monkeypatch, ["one", "two"], "--max-new-tokens", "1") == 0
    assert [asked["history"] for asked in recorder.asked] == [[], []]
    monkeypatch.setattr("arr_coc.qwen.familiar.is_mini", lambda tokenizer: False)
    recorder.asked.clear()
    assert talk(monkeypatch, ["one", "two"], "--max-new-tokens", "1") == 0
    assert [len(asked["history"]) for asked in recorder.asked] == [0, 1]


def test_what_is_streamed_is_the_answer(monkeypatch, mini, capsys):
    monkeypatch.setattr(loading, "load", lambda *_, **__: mini)
    question = "Describe the scene."
    assert talk(monkeypatch, [question], "--quiet") == 0
    assert capsys.readouterr().out == mini.ask(sample_image(), question, keep="auto").text + "\n"


def test_commands(monkeypatch, recorder, capsys, tmp_path):
    Image.new("RGB", (96, 64), "red").save(tmp_path / "a red one.png")
    picture, why = tmp_path / "a red one.png", tmp_path / "deep" / "why.png"
    lines = ["/help", "/history", "one", "/history", "/keep", "/keep 0.25", f"/image '{picture}'", "/history", "two"]
    assert talk(monkeypatch, [*lines, f"/overlay {why}", " /x is a question"], "--max-new-tokens", "1") == 0
    _, err = capsys.readouterr()
    assert all(line in err for line in COMMANDS.values())
    assert err.count("nothing was asked yet") == 2  # at first, and about the new image
    assert "? one\n" in err
    assert "keep 0.5\n" in err, "the model's own dial"
    assert recorder.asked[1]["images"] == [(96, 64)]
    assert recorder.asked[1]["keep"] == 0.25
    assert recorder.asked[2]["question"] == "/x is a question"
    with Image.open(why) as drawn:
        assert min(drawn.size) > 96, "with question, answer and legend"


def test_a_line_that_fails_is_told_and_the_chat_goes_on(monkeypatch, recorder, capsys, tmp_path):
    picture = tmp_path / "a.png"
    Image.new("RGB", (64, 64)).save(picture)
    wrong = {
        "/kep 0.5": "/help lists them",
        "/keep 0": "keep=0",
        "/image": "/image FILE",
        "/image no-such.png": "no such image",
        "/image 'open": "quotation mark",
        "/overlay why.png": "ask first",
    }
    late = {"/overlay": "/overlay FILE", "/overlay why.txt": "end its name in", f"/overlay {picture}": "another name"}
    lines = [*wrong, "one", *late, "\ud83d", "two"]
    assert talk(monkeypatch, lines, str(picture), "--max-new-tokens", "1", "--quiet") == 3
    out, err = capsys.readouterr()
    told = err.splitlines()
    assert len(told) == len(wrong) + len(late) + 1
    assert all(line.startswith("arr-coc: ") for line in told)
    assert all(says in line for says, line in zip((*wrong.values(), *late.values(), "surrogate"), told, strict=True))
    assert [asked["question"] for asked in recorder.asked if asked["question"] in ("one", "two")] == ["one", "two"]
    assert out.count("\n") >= 2


class Terminal(io.StringIO):
    """Somebody sits there."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "code", "says"),
    [
        ([EOFError], 0, ""),
        (["one", EOFError], 0, "visual tokens"),
        ([KeyboardInterrupt, KeyboardInterrupt], 130, "interrupted"),
        ([KeyboardInterrupt, "one", KeyboardInterrupt, EOFError], 0, "once more leaves"),
        (["/quit"], 0, "/help lists the commands"),
        (["/nonsense", EOFError], 0, "/help lists them"),  # seen by the person: no failure of the whole
    ],
)
def test_leaving(monkeypatch, recorder, capsys, typed, code, says):
    keys = iter(typed)

    def fake_input(prompt: str = "") -> str:
        key = next(keys)
        if isinstance(key, str):
            return key
        raise key

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(builtins, "input", fake_input)
    assert run(["chat", "--max-new-tokens", "1"]) == code
    out, err = capsys.readouterr()
    assert says in err
    assert "? " not in out  # stdout is no terminal here: the prompt is on stderr
    assert "? " in err


def test_the_handler_is_put_back(monkeypatch, recorder):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "stdin", Terminal())
    keys = iter(["one"])
    monkeypatch.setattr(builtins, "input", lambda prompt="": next(keys, "/quit"))
    assert run(["chat", "--max-new-tokens", "1"]) == 0
    assert signal.getsignal(signal.SIGINT) is before


ENDLESS = """
import sys
from arr_coc.cli import loading
from arr_coc.cli.run import main
load = loading.load
def endless(*given, **named):
    model = load(*given, **named)
    model.model.generation_config.eos_token_id = None
    return model
loading.load = endless
sys.argv = ["arr-coc", "chat", "--max-new-tokens", "4000"]
main()
"""


class Session:
    """A program at a terminal of its own."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {
            "TERM": "xterm",
            "PYTHONPATH": str(ROOT),
        }

        def own_terminal() -> None:
            import fcntl
            import termios

            signal.signal(signal.SIGINT, signal.SIG_DFL)  # what runs in a shell's background inherits deafness to it
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C, typed, becomes a signal

        command = [sys.executable, "-c", ENDLESS]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, preexec_fn=own_terminal
        )
        os.close(slave)
        self.seen = ""

    def comes(self, words: str, seconds: float) -> bool:
        """Read until these words were seen, or the time is over, or the program."""
        end = time.monotonic() + seconds
        while words not in self.seen:
            ready, _, _ = select.select([self.master], [], [], max(0.0, end - time.monotonic()))
            try:
                self.seen += os.read(self.master, 4096).decode(errors="replace") if ready else ""
            except OSError:
                return False
            if not ready:
                return False
        return True

    def until(self, words: str) -> str:
        """What came up to these words, which must come."""
        assert self.comes(words, 120), f"{words!r} never came: {self.seen!r}"
        before, _, self.seen = self.seen.partition(words)
        return before

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def interrupt(self, words: str) -> None:
        """Ctrl-C at the prompt. One that falls between the prompt and the wait for a key is seen with the next key."""
        time.sleep(0.3)
        self.type("\x03")
        if not self.comes(words, 5):
            self.type(" ")
        self.until(words)


def test_ctrl_c_stops_the_answer_and_not_the_chat():
    session = Session()
    try:
        prompt = "\x1b[1m? "
        session.until(prompt)
        session.type(f"{HAND}\n")
        session.until("green")  # the answer runs, and would not end by itself
        session.type("\x03")
        session.until("stopped")
        session.until(prompt)
        session.type("/history\n")
        assert HAND in session.until("green")
        session.until(prompt)
        session.interrupt("once more leaves")
        session.until(prompt)
        session.interrupt("interrupted")
        assert session.process.wait(60) == 130
    finally:
        session.process.kill()
        os.close(session.master)
