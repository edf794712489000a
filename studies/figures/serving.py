"""Figures of serving, from results/serving-vllm.json."""

from typing import Any

from arr_coc.evaluation.report.pages import markdown_table

NAMES = {"stock": "stock vLLM", "keep=1.0": "`keep` 1.0", "keep=0.25": "`keep` 0.25", "keep=auto": '`keep` "auto"'}


def vllm_table(results: dict[str, Any]) -> str:
    """CPU seconds for many images, and for ten questions about each of a few."""
    many, ten = results["many"], results["ten_questions"]
    count, side, few = results["images"], results["side"], results["repeats"]
    asked, again = f"{count} images of {side} px, CPU s", f"ten questions about an image, CPU s (mean of {few})"
    heads = ("mini, one CPU thread", asked, "times stock", "visual tokens", "right", again)
    rows = []
    for name, one in many.items():
        later = f"{ten[name]['cpu_s'] / few:.1f}" if name in ten else "-"
        told = (
            f"{one['cpu_s']:.1f}",
            f"x{one['ratio']:.1f}",
            f"{one['visual_tokens']:,}",
            f"{one['right']} of {count}",
        )
        rows.append((NAMES[name], *told, later))
    return "\n".join(markdown_table(heads, rows))
