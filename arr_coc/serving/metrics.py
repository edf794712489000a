"""What a server counts, as Prometheus reads it."""

import threading
from collections import Counter
from collections.abc import Mapping

HELP = {
    "requests_total": "Requests answered, by path and status.",
    "refused_full_total": "Requests refused because too many waited.",
    "left_total": "Requests whose client left before the answer.",
    "batches_total": "Batches begun.",
    "batch_rows_total": "Questions in them.",
    "visual_tokens_total": "Visual tokens of the images asked about.",
    "visual_tokens_kept_total": "Visual tokens that the language model saw.",
    "prompt_tokens_total": "Tokens of the prompts as the language model saw them.",
    "completion_tokens_total": "Tokens of the answers.",
    "stage_seconds_total": "Seconds by stage; prefill is a part of generate.",
    "cache_hits_total": "Looks at images that were remembered.",
    "cache_misses_total": "Looks at images that were not.",
}
GAUGES = {
    "lost": "1 once the device is lost, and the server must be started anew.",
    "places_taken": "Requests between their head and their answer.",
    "waiting": "Questions that wait to be answered.",
    "cache_bytes": "Bytes remembered of images.",
}


class Metrics:
    """Counters by name and labels; threads share them."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, value: float = 1, **labels: object) -> None:
        """Labels are of few values, all of them ours."""
        assert name in HELP, name
        told = ",".join(f'{label}="{one}"' for label, one in sorted(labels.items()))
        with self._lock:
            self._counts[name, f"{{{told}}}" if told else ""] += value  # type: ignore[assignment]

    def text(self, now: Mapping[str, float]) -> str:
        """All of them, with what is so now, and what others have counted."""
        with self._lock:
            counts = {**self._counts, **{(name, ""): value for name, value in now.items() if name in HELP}}
        counts |= {(name, ""): counts.get((name, ""), 0) for name in HELP if not any(name == one for one, _ in counts)}
        lines: list[str] = []
        for kind, names in (("counter", HELP), ("gauge", GAUGES)):
            for name, about in names.items():
                lines += [f"# HELP arr_coc_{name} {about}", f"# TYPE arr_coc_{name} {kind}"]
                values = counts if kind == "counter" else {(name, ""): now[name]}
                lines += [
                    f"arr_coc_{name}{labels} {value:.15g}" for (one, labels), value in values.items() if one == name
                ]
        return "\n".join(lines) + "\n"
