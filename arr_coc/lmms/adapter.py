"""ARR-COC as a chat model of lmms-eval, and its scenes as a task: all that imports lmms-eval."""

import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NoReturn

from datasets import Dataset, DatasetDict
from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.api.task import ConfigurableMessagesTask
from lmms_eval.models.model_utils.gen_metrics import log_metrics
from tqdm import tqdm  # type: ignore[import-untyped]

from arr_coc.lmms.documents import METRICS, mean_score, scene_documents
from arr_coc.lmms.requests import Options, Reply, answer_chats, cut_at, read_chat, read_generation, read_options
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.selectors import read_selector


def load(options: Options) -> ARRCOCQwen:
    """The model of a run. keep="auto" chooses on small images too, and answers take the path that batches."""
    how = {name: getattr(options, name) for name in ("keep", "encoding", "device", "dtype")}
    owner = ARRCOCQwen.from_pretrained(options.pretrained, fast=False, break_even=0, **how)
    if options.selector != "auto":
        owner.selector = read_selector(options.selector, owner.arr_coc_config, owner.layer).to(owner.device).eval()
    if owner.selector.reads_evidence:
        raise ValueError(f"selector {options.selector!r} is told the answer's place, which lmms-eval does not do")
    return owner


def batches(requests: Sequence[Instance], size: int) -> Iterator[list[int]]:
    """Numbers of requests that are answered together: they follow each other and generate alike."""
    for _, alike in groupby(range(len(requests)), key=lambda number: requests[number].args[2]):
        members = list(alike)
        yield from (members[start : start + size] for start in range(0, len(members), size))


class ARRCOC(lmms):
    """--model arr_coc. Options: see `Options`."""

    is_simple = False

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.options = read_options(given)
        self.owner = load(self.options)
        self.device = self.owner.device

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """Answers in the order of the requests; the mean number of visual tokens is logged with the speed."""
        replies: list[Reply] = []
        results: list[GenerationResult] = []
        started = time.perf_counter()
        with tqdm(total=len(requests), desc="Model Responding", disable=self.rank != 0) as progress:
            for numbers in batches(requests, self.options.batch_size):
                found, texts = self._answer([requests[number] for number in numbers])
                replies += found
                counts = [TokenCounts(output_tokens=reply.new_tokens) for reply in found]
                results += [GenerationResult(text, count) for text, count in zip(texts, counts, strict=True)]
                progress.update(len(numbers))
        self._log(replies, time.perf_counter() - started)
        return results

    def _answer(self, requests: Sequence[Instance]) -> tuple[list[Reply], list[str]]:
        """Replies, and their texts up to where the request says that they end."""
        chats = []
        for request in requests:
            _, doc_to_messages, _, doc_id, task, split = request.args
            chats.append(read_chat(doc_to_messages(self.task_dict[task][split][doc_id])))
        keywords, until = read_generation(requests[0].args[2])
        sampling = {"fps": self.options.fps, "frames": self.options.max_num_frames}
        replies = answer_chats(self.owner, chats, keywords, **sampling)
        texts = [cut_at(reply.text, until) for reply in replies]
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", (request.args[0], request.args[2]), text)
        return replies, texts

    def _log(self, replies: Sequence[Reply], seconds: float) -> None:
        """One line of lmms-eval's log, and its results: time, new tokens, visual tokens per request with images."""
        seen = [reply for reply in replies if reply.visual_total]
        new = sum(reply.new_tokens for reply in replies)
        visual = {
            "visual_tokens_kept": sum(reply.visual_kept for reply in seen) / max(1, len(seen)),
            "visual_tokens_total": sum(reply.visual_total for reply in seen) / max(1, len(seen)),
        }
        log_metrics(seconds, new, new / seconds, {"num_requests": len(replies), **visual})

    def loglikelihood(self, requests: list[Instance]) -> NoReturn:
        raise NotImplementedError("arr_coc writes answers and rates none: choose tasks with output_type generate_until")

    def generate_until_multi_round(self, requests: list[Instance]) -> NoReturn:
        raise NotImplementedError("arr_coc answers in one round: choose tasks with output_type generate_until")


class ScenesTask(ConfigurableMessagesTask):
    """arr_coc_scenes: what the YAML says, with a metric per family; its documents are made instead of downloaded."""

    def __init__(self, config: dict[str, Any]) -> None:
        metrics = [{"metric": name, "aggregation": mean_score, "higher_is_better": True} for name in METRICS]
        settings = {name: value for name, value in config.items() if name != "class"}
        super().__init__(config={**settings, "metric_list": metrics})

    def download(self, dataset_kwargs: dict[str, Any]) -> None:
        """Make the documents; their pictures are drawn when a question is asked."""
        documents = Dataset.from_list(scene_documents(**dataset_kwargs))
        self.dataset = self.dataset_no_image = DatasetDict({self.config.test_split: documents})
