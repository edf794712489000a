"""A question about images -> an answer, whole or as it comes."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from arr_coc.config import check_keeps
from arr_coc.images.reader import ImageLike, read_images
from arr_coc.qwen import running
from arr_coc.qwen.answers import Answer, ImageSelection
from arr_coc.qwen.graphs import switch
from arr_coc.qwen.owner import Owner
from arr_coc.qwen.processor import Conversation, encode
from arr_coc.qwen.streaming import PromptRestorer, stream_text

Images = ImageLike | Sequence[ImageLike]
History = Sequence[tuple[str, str]]


def ask(
    owner: Owner,
    images: Images,
    question: str,
    *,
    keep: Any = None,
    history: History = (),
    max_new_tokens: int = 128,
    streamer: Any = None,
    **generate_kwargs: Any,
) -> Answer:
    """Answer a question about one or several images; see `ARRCOCQwen.ask`."""
    inputs = encode_question(owner, images, question, history, keep)
    prompt = inputs["input_ids"]
    # Beam search takes no streamer; without one, the time to the first token is not known.
    beams = _beams(owner, generate_kwargs)
    if beams > 1 and streamer is not None:
        raise ValueError(f"num_beams={beams} cannot be streamed: beams end together; leave one of the two out")
    restorer = PromptRestorer(prompt, streamer) if beams == 1 else None
    served = switch.serve(owner, inputs, keep, {"max_new_tokens": max_new_tokens, **generate_kwargs}, restorer)
    if served is not None:
        return _answer(owner, served.new_BT[0], served.images[0], _as_timed(served.timings_ms, served.new_BT.shape[1]))
    with torch.no_grad():
        prepared = owner.prepare(**inputs, keep=keep)
        if restorer is not None:
            restorer.start()
        with prepared.stopwatch.part("generate"):
            output = running.generate(
                owner.model, prompt, prepared, restorer, max_new_tokens=max_new_tokens, **generate_kwargs
            )
    sequences = output if isinstance(output, Tensor) else output.sequences
    timings = prepared.stopwatch.milliseconds()
    if restorer is not None:
        timings["prefill"] = 1e3 * restorer.prefill_seconds
    return _answer(owner, sequences[0, prompt.shape[1] :], prepared.images[0], timings)


def _answer(owner: Owner, new_T: Tensor, images: list[ImageSelection], timings_ms: dict[str, float]) -> Answer:
    return Answer(
        text=owner.processor.tokenizer.decode(new_T, skip_special_tokens=True, clean_up_tokenization_spaces=False),
        selection=images,
        tokens_total=sum(image.tokens_total for image in images),
        tokens_kept=sum(image.tokens_kept for image in images),
        timings_ms=timings_ms,
    )


def _as_timed(fast_ms: dict[str, float], tokens: int) -> dict[str, float]:
    """The fast path's times under the plain path's names: "generate" is prefill and all steps together."""
    times = {name: fast_ms[name] for name in ("select", "vision", "prefill")}
    return {**times, "generate": fast_ms["prefill"] + fast_ms["decode"] * max(0, tokens - 1)}


def stream(owner: Owner, images: Images, question: str, **kwargs: Any) -> Iterator[str]:
    """As `ask`, yielding the text as it comes; see `ARRCOCQwen.stream`."""
    criteria = list(kwargs.pop("stopping_criteria", None) or [])

    def run(streamer: Any, stop: Any) -> None:
        ask(owner, images, question, streamer=streamer, stopping_criteria=[*criteria, stop], **kwargs)

    return stream_text(owner.processor.tokenizer, run)


def encode_question(owner: Owner, images: Images, question: str, history: History, keep: Any) -> dict[str, Tensor]:
    """Read and encode one conversation; users' mistakes end here."""
    if owner.processor is None:
        raise ValueError("asking needs a processor: load the model with from_pretrained, or pass processor=")
    _check_text(question, "the question")
    if not question.strip():
        raise ValueError("the question is empty: ask something about the image")
    for turn in history:
        if not isinstance(turn, (list, tuple)) or len(turn) != 2:
            raise ValueError("history holds (question, answer) pairs")
        _check_text(turn[0], "a question of the history")
        _check_text(turn[1], "an answer of the history")
    check_keeps(owner.keep if keep is None else keep, 1)
    inputs = encode(owner.processor, [Conversation(read_images(images), question, history)])
    inputs.pop("mm_token_type_ids")
    return inputs


def _beams(owner: Owner, generate_kwargs: dict[str, Any]) -> int:
    """The number of beams in force: given, or in the given or the model's own generation config."""
    config = generate_kwargs.get("generation_config") or owner.model.generation_config
    return int(generate_kwargs.get("num_beams") or config.num_beams or 1)


def _check_text(text: Any, what: str) -> None:
    if not isinstance(text, str):
        raise ValueError(f"{what} is a {type(text).__name__}, not text; an empty one is not a question")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} holds half of a surrogate pair: decode the text before asking") from None
