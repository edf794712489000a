"""What a client asks for: an OpenAI-style body -> a conversation, its images as addresses, a dial and settings.

Nothing is fetched, decoded or loaded here; an engine other than ours reads requests with the same functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arr_coc.config import Keep, check_keep
from arr_coc.images.reader import MOST_IMAGES

ANSWER_TOKENS = 128  # of an answer where nobody says how many, as everywhere else
MOST_MESSAGES, MOST_STOPS, MOST_STOP = 256, 4, 100  # of a conversation; texts that end an answer, characters of one
ROLES = ("system", "developer", "user", "assistant")
DIALS = ("extra_body", "mm_processor_kwargs")  # where else a client may put `keep`
FIELDS = {
    *("model", "messages", "keep", *DIALS, "user"),
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options"),
}
CHOICE_FIELDS = {"model", "messages", "keep", *DIALS, "user", "overlay"}
# Settings of others that change nothing as long as they say this.
NEUTRAL: dict[str, Any] = {
    **{"n": 1, "frequency_penalty": 0, "presence_penalty": 0, "logprobs": False, "store": False},
    **{"response_format": {"type": "text"}, "tools": [], "logit_bias": {}, "metadata": {}},
}
LEAST_TEMPERATURE = 1e-3  # below it the likeliest token is taken: dividing by less overflows
MOST_TOLD = 500  # characters of a refusal, which may hold words of the client's
CODES = {401: "invalid_api_key", 404: "not_found", 413: "too_large", 429: "rate_limit_exceeded"}


class ApiError(Exception):
    """A refusal: what is wrong and what to do, as OpenAI's clients read it."""

    def __init__(self, message: str, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code or CODES.get(status)

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        told = {"message": str(self)[:MOST_TOLD], "type": kind, "param": self.param, "code": self.code}
        # Half of a surrogate pair, which JSON can hold and no answer can, is spelled out.
        return {
            "error": {name: text and text.encode(errors="backslashreplace").decode() for name, text in told.items()}
        }


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for."""

    body: int = 32 << 20  # bytes
    images: int = MOST_IMAGES
    pixels: int = 16_000_000  # of all its images
    tokens: int = 1024  # of an answer


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request, checked. Of `temperature` and `top_p`, None is what the model's own settings say."""

    images: tuple[str, ...]  # addresses
    question: str
    history: tuple[tuple[str, str], ...]
    system: str
    keep: Keep | None  # None: the server's
    max_tokens: int = ANSWER_TOKENS
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False  # a last piece of the stream that says what it took
    overlay: bool = False  # of a choice: a picture of it

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of generate; requests whose are equal can be answered together."""
        sampled = {"top_p": self.top_p, "temperature": self.temperature or None}
        given = {} if self.temperature == 0 else {name: value for name, value in sampled.items() if value is not None}
        return given if self.temperature is None else {"do_sample": self.temperature > 0, **given}


def read_chat(body: Any, limits: Limits, model: str) -> Wanted:
    """A body of /v1/chat/completions; `model` is the name that is served."""
    given = _fields(body, FIELDS, model)
    most = given.get("max_completion_tokens", given.get("max_tokens", min(ANSWER_TOKENS, limits.tokens)))
    _check(type(most) is int and 1 <= most <= limits.tokens, "max_tokens", f"give 1 to {limits.tokens}")
    for name, (low, high) in {"temperature": (0, 2), "top_p": (0.001, 1)}.items():
        _check(name not in given or _is_number(given[name], low, high), name, f"give a number from {low} to {high}")
    seed = given.get("seed")
    _check(seed is None or (type(seed) is int and 0 <= seed < 2**63), "seed", "give a whole number of 0 or more")
    stop = given.get("stop", [])
    stop = [stop] if isinstance(stop, str) else stop
    fits = isinstance(stop, list) and len(stop) <= MOST_STOPS
    fits = fits and all(isinstance(one, str) and 0 < len(one) <= MOST_STOP for one in stop)
    _check(fits, "stop", f"give up to {MOST_STOPS} texts of up to {MOST_STOP} characters")
    stream, options = given.get("stream", False), given.get("stream_options", {})
    _check(isinstance(stream, bool), "stream", "give true or false")
    fits = isinstance(options, dict) and set(options) <= {"include_usage"}
    fits = fits and options.get("include_usage") in (None, True, False)
    _check(fits, "stream_options", "give include_usage alone, true or false")
    warmth, top_p = (float(given[name]) if name in given else None for name in ("temperature", "top_p"))
    warmth = 0.0 if warmth is not None and warmth < LEAST_TEMPERATURE else warmth
    settings: list[Any] = [most, warmth, top_p, seed, tuple(stop), stream, options.get("include_usage") is True]
    return Wanted(*_conversation(given.get("messages"), limits), _dial(given), *settings)


def read_choice(body: Any, limits: Limits, model: str) -> Wanted:
    """A body of /v1/arr_coc/select: what is asked, and the dial."""
    given = _fields(body, CHOICE_FIELDS, model)
    overlay = given.get("overlay", False)
    _check(isinstance(overlay, bool), "overlay", "give true for a picture of the choice, or leave it out")
    return Wanted(*_conversation(given.get("messages"), limits), _dial(given), overlay=overlay)


def _check(right: bool, param: str, what_to_do: str) -> None:
    if not right:
        raise ApiError(f"{param} is not right: {what_to_do}", param=param)


def _is_number(value: Any, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _fields(body: Any, known: set[str], model: str) -> dict[str, Any]:
    """What is given, without what is null or changes nothing. Unknown fields are refused, never passed over."""
    if not isinstance(body, dict):
        raise ApiError("the body is no JSON object: send model and messages")
    given = {name: value for name, value in body.items() if value is not None and NEUTRAL.get(name, ...) != value}
    leave = f"it is not known here; leave it out. Known are {', '.join(sorted(known))}"
    for name in given:
        _check(name in known, str(name)[:50], leave)
    if given.get("model") != model:
        raise ApiError(f"no such model here: give model {model!r}", 404, "model", "model_not_found")
    return given


def _dial(given: Mapping[str, Any]) -> Keep | None:
    """`keep`, wherever it stands. JSON of JavaScript has no 1.0: a plain 1 is all, where Python could not know."""
    places: list[Any] = [given, *(given.get(name, {}) for name in DIALS)]
    for name, inner in zip(DIALS, places[1:], strict=True):
        _check(isinstance(inner, dict) and set(inner) <= {"keep"}, name, "it may hold keep and nothing else")
    found = [place["keep"] for place in places if place.get("keep") is not None]
    _check(all(one == found[0] for one in found[1:]), "keep", "it is given twice; give it once")
    if not found:
        return None
    try:
        return check_keep(1.0 if type(found[0]) is int and found[0] == 1 else found[0])
    except ValueError as error:
        raise ApiError(str(error), param="keep") from None


# ---------------------------------------------------------------- messages


def _conversation(messages: Any, limits: Limits) -> tuple[tuple[str, ...], str, tuple[tuple[str, str], ...], str]:
    """Images of all messages in their order, the last question, the (question, answer) pairs before it, and the system.

    All images are shown before the first question, as a model that was trained on single questions expects them.
    """
    fits = isinstance(messages, list) and 0 < len(messages) <= MOST_MESSAGES
    _check(fits, "messages", f"give a list of 1 to {MOST_MESSAGES} messages")
    images: list[str] = []
    system: list[str] = []
    turns: list[tuple[str, str]] = []
    for place, message in enumerate(messages):
        role, text, shown = _message(message, f"messages[{place}]")
        images += shown
        if role in ("system", "developer"):
            _check(not turns, f"messages[{place}]", "what the system says comes first")
            system.append(text)
        else:
            expected = ("user", "assistant")[len(turns) % 2]
            _check(role == expected, f"messages[{place}]", "user and assistant take turns, and the user begins")
            turns.append((role, text))
    _check(len(turns) % 2 == 1, "messages", "the last one is the user's question")
    _check(bool(images), "messages", "there is no image; send one as a part of type image_url")
    _check(len(images) <= limits.images, "messages", f"{len(images)} images are too many; send {limits.images} at most")
    said = [text for _, text in turns]
    pairs = tuple(zip(said[:-1:2], said[1::2], strict=True))
    return tuple(images), said[-1], pairs, "\n\n".join(system)


def _message(message: Any, where: str) -> tuple[str, str, list[str]]:
    """Role, text and addresses of images of one message."""
    fits = isinstance(message, dict) and message.get("role") in ROLES
    _check(fits, where, f"give role ({', '.join(ROLES)}) and content")
    given = {name: value for name, value in message.items() if value not in (None, [])}  # as in answers of others
    unknown = set(given) - {"role", "content", "name"}
    _check(not unknown, where, f"it holds more than role and content: leave out {', '.join(sorted(map(str, unknown)))}")
    content = given.get("content", "")
    parts: Sequence[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    _check(isinstance(parts, list), where, "its content is a text, or a list of parts")
    texts: list[str] = []
    images: list[str] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
            continue
        address = part.get("image_url") if kind == "image_url" else None
        address = address.get("url") if isinstance(address, dict) else address
        told = str(kind)[:50] if isinstance(kind, str) and kind not in ("text", "image_url") else "a part"
        what = f"{told} cannot be read; send parts of type text with text, and image_url with url"
        _check(isinstance(address, str), where, what)
        images.append(str(address))
    _check(not images or given["role"] == "user", where, "images are the user's")
    return given["role"], "\n".join(texts), images
