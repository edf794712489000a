"""What went wrong, in one short line for the page: no address, no path, no traceback."""

import logging
import re
import secrets

import torch

logger = logging.getLogger(__name__)

MOST_CHARACTERS = 240
# Addresses of memory, paths, and what a traceback is made of.
PRIVATE = re.compile(r"\b0x[0-9a-fA-F]{4,}|(?:^|[\s'\"(=:])(?:[A-Za-z]:\\|~?/)[^\s'\"]+|File \"|Traceback")


def short_message(error: BaseException) -> str:
    """Our own messages as they are; anything else by a number that stands in the log as well."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return "out of memory: give a smaller image, or keep fewer tokens"
    text = str(error).strip()
    ours = isinstance(error, ValueError) and text and "\n" not in text and not PRIVATE.search(text)
    if ours and len(text) <= MOST_CHARACTERS:
        return text
    number = secrets.token_hex(4)
    logger.error("error %s of the demo", number, exc_info=error)
    return f"something went wrong here: try again, and report error {number} if it stays"
