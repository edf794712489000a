"""What came of a request, in OpenAI's form: a completion, the events of a stream, a choice."""

import base64
import io
import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

from PIL import Image

from arr_coc.qwen.answers import ImageSelection
from arr_coc.serving.engine import Finished
from arr_coc.viewing import headed, kept_page, tokens_told


def usage(outcome: Finished) -> dict[str, Any]:
    """Tokens, those of the prompt as the language model saw it."""
    seen, new = outcome.prompt_tokens, outcome.new_tokens
    visual = {"visual_tokens_kept": outcome.tokens_kept, "visual_tokens_total": outcome.tokens_total}
    return {"prompt_tokens": seen, "completion_tokens": new, "total_tokens": seen + new, **visual}


def about(image: ImageSelection) -> dict[str, Any]:
    """How much was kept of an image, and why."""
    tokens = {"grid": list(image.grid), "tokens_kept": image.tokens_kept, "tokens_total": image.tokens_total}
    small = None if image.periphery is None else list(image.periphery)
    cells = {"cells_kept": image.cells_kept, "cells_covered": image.cells_covered}
    return {**tokens, **cells, "periphery": small, "strategy": image.strategy, "reason": image.why}


def choice(model: str, outcome: Finished, pictures: Sequence[Image.Image], asked: str | None) -> dict[str, Any]:
    """Every image with its kept cells and scores (rows of cells), and a picture of it under the question `asked`.

    None where no pictures are wanted.
    """
    told: list[dict[str, Any]] = []
    for image, picture in zip(outcome.images, pictures, strict=True):
        scores = [] if image.relevance is None else image.relevance.cpu().float().nan_to_num(0.0).tolist()
        covered = image.kept_for_coverage.tolist()
        rounded = [[round(one, 4) for one in row] for row in scores] or None
        told.append({**about(image), "kept": image.kept.tolist(), "covered": covered, "scores": rounded})
        if asked is not None:
            written, tokens = io.BytesIO(), tokens_told(image.tokens_kept, image.tokens_total)
            headed(kept_page([picture], [image]), asked, tokens=tokens).save(written, "PNG")
            told[-1]["overlay"] = "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()
    return {"object": "arr_coc.choice", "model": model, "usage": usage(outcome), "images": told}


class Chat:
    """One completion of a model, as a whole or in events."""

    def __init__(self, model: str) -> None:
        self.number = f"chatcmpl-{secrets.token_hex(12)}"
        self._about = {"id": self.number, "created": int(time.time()), "model": model}

    def whole(self, outcome: Finished) -> dict[str, Any]:
        message = {"role": "assistant", "content": outcome.text}
        choices = [{"index": 0, "message": message, "finish_reason": outcome.ended, "logprobs": None}]
        times = {part: round(ms, 2) for part, ms in outcome.timings_ms.items()}
        ours = {"images": [*map(about, outcome.images)], "notices": list(outcome.notices), "timings_ms": times}
        told = {"object": "chat.completion", "choices": choices, "usage": usage(outcome), "arr_coc": ours}
        return {**self._about, **told}

    def event(self, delta: dict[str, str] | None, ended: str | None = None, **more: Any) -> str:
        """A piece of the answer, or its end; without a `delta`, what it took."""
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": ended, "logprobs": None}]
        return f"data: {json.dumps({**self._about, 'object': 'chat.completion.chunk', 'choices': choices, **more})}\n\n"
