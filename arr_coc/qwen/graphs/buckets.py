"""Sizes rounded up to a few fixed ones. A recording is made per size, and what is padded is masked or never read."""

# Budgets that people ask for are sizes of their own, so that these are not padded at all.
BUDGETS = (16, 32, 64, 96, 128, 200, 256, 400, 512, 768, 1024)
TEXTS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
CAPACITIES = (128, 256, 384, 512, 768, 1024)


def round_up(size: int, steps: tuple[int, ...]) -> int:
    """The smallest step that holds `size`; beyond the last step, eighths of powers of two (12.5 % padding at most)."""
    assert size >= 0, size
    for step in steps:
        if size <= step:
            return step
    grain = max(1, 1 << ((size - 1).bit_length() - 4))
    return -(-size // grain) * grain


def budget_bucket(tokens: int) -> int:
    """Windows of one image."""
    return round_up(tokens, BUDGETS)


def text_bucket(tokens: int) -> int:
    """Tokens of one row that are not visual."""
    return round_up(tokens, TEXTS)


def capacity_bucket(tokens: int) -> int:
    """Places of the cache of one row: prompt and answer together. A multiple of 8, as attention kernels like it."""
    return -(-round_up(tokens, CAPACITIES) // 8) * 8
