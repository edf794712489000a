"""What choosing saves in vLLM: CPU seconds of stock vLLM and of the plugin, on the same questions in one run.

    .venv-vllm/bin/python -m studies.serving_vllm            # 64 images of 1024 px, into results/serving-vllm.json

Stock vLLM and vLLM with the plugin live in one process, on one thread (OMP_NUM_THREADS=1), and take turns over groups
of images, so that a machine that slows down slows all of them. What counts is the time that the process was at work:
reading the image, choosing, the ViT, the language model. Then ten questions about one image, one after the other: stock
vLLM remembers the whole image, the plugin what does not depend on the question.
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arr_coc.vllm import engine_arguments, variables

os.environ.update(variables(), VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="ERROR")

import vllm
from PIL import Image

from arr_coc.files import write_json
from arr_coc.qwen.loading import resolve
from arr_coc.vllm.choosing import front_chooser
from arr_coc_scenes import draw_scene, make_scene

RESULTS = Path(__file__).parents[1] / "results" / "serving-vllm.json"
DIALS: tuple[Any, ...] = (0.25, "auto")
STOCK, PLAIN, FIRST = "stock", "keep=1.0", 7000
TEN = (
    *("Describe the scene.", "Which word is blue?", "Which word is red?", "What is the largest thing?"),
    *("How many stars are there?", "What colour is the star?", "What colour is the hand?", "Is there a moon?"),
    *("What does the sign say?", "What is left of the star?"),
)
Asked = tuple[Image.Image, str]


class Way:
    """One engine and one dial (None: stock), and what it took so far."""

    def __init__(self, engine: Any, keep: Any) -> None:
        self.engine, self.keep, self.cpu, self.wall, self.kept = engine, keep, 0.0, 0.0, 0
        self.texts: list[str] = []

    def ask(self, several: Sequence[Asked]) -> None:
        """All at once, timed."""
        cpu, wall = time.process_time(), time.perf_counter()
        made = self.engine.generate(
            [self._prompt(*one) for one in several],
            vllm.SamplingParams(temperature=0, max_tokens=64),
            use_tqdm=False,
        )
        self.cpu, self.wall = self.cpu + time.process_time() - cpu, self.wall + time.perf_counter() - wall
        token = self.engine.llm_engine.model_config.hf_config.image_token_id
        self.kept += sum(one.prompt_token_ids.count(token) for one in made)
        self.texts += [one.outputs[0].text for one in made]

    def _prompt(self, image: Image.Image, question: str) -> dict[str, Any]:
        turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
        text = self.engine.get_tokenizer().apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        dial = {} if self.keep is None else {"mm_processor_kwargs": {"keep": self.keep}}
        return {"prompt": text, "multi_modal_data": {"image": [image]}, **dial}

    def told(self, stock: "Way") -> dict[str, Any]:
        ratio = {"ratio": round(stock.cpu / self.cpu, 2), "visual_tokens": self.kept}
        return {"cpu_s": round(self.cpu, 2), "wall_s": round(self.wall, 2), **ratio}


def forget(selector: str) -> None:
    """What the plugin remembers of images: the next way shall not find what the last one made."""
    front = front_chooser("mini", selector, None, None)
    front.memory.clear()
    front.chooser.memory.clear()


def ways(stock: Any, plugin: Any, plain: bool) -> dict[str, Way]:
    chosen = {f"keep={keep}": Way(plugin, keep) for keep in ((1.0, *DIALS) if plain else DIALS)}
    return {STOCK: Way(stock, None), **chosen}


def many(stock: Any, plugin: Any, given: argparse.Namespace) -> dict[str, Any]:
    """A question about each of many images, in groups."""
    found, answers = ways(stock, plugin, given.plain), []
    for start in range(0, given.images, given.group):
        numbers = range(FIRST + start, FIRST + min(start + given.group, given.images))
        scenes = [make_scene(number, "seen", (given.side, given.side)) for number in numbers]
        answers += [scene.questions[0].answer for scene in scenes]
        asked = [(Image.fromarray(draw_scene(scene)), scene.questions[0].text) for scene in scenes]
        for way in found.values():
            forget(given.selector)
            way.ask(asked)
        print({name: way.told(found[STOCK]) for name, way in found.items()}, flush=True)
    right = {name: sum(map(str.__eq__, way.texts, answers)) for name, way in found.items()}
    return {name: {**way.told(found[STOCK]), "right": right[name]} for name, way in found.items()}


def ten(stock: Any, plugin: Any, given: argparse.Namespace) -> dict[str, Any]:
    """Ten questions about each of some images, one after the other."""
    found = ways(stock, plugin, False)
    for number in range(given.repeats):
        image = Image.fromarray(draw_scene(make_scene(FIRST - 1 - number, "seen", (given.side, given.side))))
        for way in found.values():
            forget(given.selector)
            for question in TEN:
                way.ask([(image, question)])
        print({name: way.told(found[STOCK]) for name, way in found.items()}, flush=True)
    return {name: way.told(found[STOCK]) for name, way in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--group", type=int, default=16, help="images that are asked about at once")
    parser.add_argument("--side", type=int, default=1024, help="pixels")
    parser.add_argument("--repeats", type=int, default=3, help="images of ten questions")
    parser.add_argument("--selector", default="auto", help="of the plugin")
    parser.add_argument("--plain", action="store_true", help="the plugin with keep=1.0 too")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    how = engine_arguments("mini", selector=given.selector, max_model_len=4096)
    plugin = vllm.LLM(**how)
    stock = vllm.LLM(**{**how, "hf_overrides": {}, "model": resolve("mini")})
    for way in ways(stock, plugin, given.plain).values():  # each once, so that nothing is made on the way
        way.ask([(Image.fromarray(draw_scene(make_scene(1, "seen", (given.side, given.side)))), TEN[0])])
    settings = {name: value for name, value in vars(given).items() if name not in ("out", "plain")}
    about = {"model": "mini", "vllm": vllm.__version__, "threads": os.environ.get("OMP_NUM_THREADS", "all"), **settings}
    asked = {"many": many(stock, plugin, given), "ten_questions": ten(stock, plugin, given)}
    write_json(given.out, {**about, **asked})


if __name__ == "__main__":
    main()
