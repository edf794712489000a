"""Images by their address: data URIs, and http(s) of hosts that the operator named.

A host's name is resolved once, every address it has must be one of the public network, and the connection goes to the
very address that was checked. Redirects are not followed, and what comes is bounded in bytes and in time. Nothing
waits in a thread but the look-up of a name: slow hosts hold up nobody, and who gives up ends what is on its way.
"""

import asyncio
import base64
import binascii
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any
from urllib.parse import SplitResult, urlsplit

import h11

from arr_coc.images.reader import MOST_BYTES
from arr_coc.serving.reading import ApiError

SECONDS = 10.0  # for all images of a request that are fetched
PIECE = 1 << 16  # bytes that are read at once
PORTS = {"http": 80, "https": 443}
DATA = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)
PLAIN = re.compile(r"[\x21-\x5b\x5d-\x7e]+")  # printable ASCII without spaces and backslashes
LOOK_UPS = ThreadPoolExecutor(64, "look-up")  # as many as there may be places; apart from those who decode and encode
EMBEDDING = [ipaddress.ip_network(one) for one in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")]


def inline_bytes(address: str) -> bytes:
    """The file in a data URI."""
    found = DATA.match(address)
    if not found:
        raise ApiError("a data URI here is an image: begin it with data:image/png;base64,", param="messages")
    try:
        data = base64.b64decode(address[found.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise ApiError("the image's base64 is broken: encode the whole file once", param="messages") from None
    _check_size(len(data))
    return data


def is_inline(address: str) -> bool:
    return address[:5].lower() == "data:"


def _check_size(size: int) -> None:
    if size > MOST_BYTES:
        raise ApiError(f"an image is larger than {MOST_BYTES >> 20} MB: save it smaller", param="messages")


def check_address(address: str, domains: Collection[str]) -> SplitResult:
    """An http(s) address of a host that was named, without anything that could be read in two ways."""
    refusal = "that image is not fetched: send it as data:image/png;base64,..."
    if domains:
        refusal += f", or from {', '.join(sorted(domains))} by its plain http(s) address"
    try:
        parts = urlsplit(address) if PLAIN.fullmatch(address) else SplitResult("", "", "", "", "")
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:
        raise ApiError(refusal, param="messages") from None
    named = f"{parts.hostname}:{port}" if parts.scheme in PORTS and port != PORTS[parts.scheme] else parts.hostname
    has_name = named in {domain.lower() for domain in domains}
    if parts.scheme not in PORTS or not has_name or "@" in parts.netloc or "%" in parts.netloc:
        raise ApiError(refusal, param="messages")
    return parts


def is_public(address: str) -> bool:
    """Whether an IP address is of the public network; those that hold another inside are not."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif found.is_site_local or any(found in network for network in EMBEDDING):
            return False
    return found.is_global and not (found.is_multicast or found.is_reserved)


def resolve(host: str, port: int) -> tuple[str, int]:
    """One address of a host, asked for once; refused where any of its addresses is not public."""
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except OSError:
        raise ApiError("the image's host is not known: check its address", param="messages") from None
    if not found or not all(map(is_public, found)):
        raise ApiError("the image's host is not on the public network: send the image itself", param="messages")
    return found[0], port


async def fetch(parts: SplitResult, seconds: float, grew: Callable[[int], None]) -> bytes:
    """What a checked address holds; `grew` is told of every size that it grows to, and may refuse more."""
    host, port, loop = str(parts.hostname), parts.port or PORTS[parts.scheme], asyncio.get_running_loop()
    secured: dict[str, Any] = {"ssl": _trusted(), "server_hostname": host} if parts.scheme == "https" else {}
    try:
        async with asyncio.timeout(seconds):
            place = await loop.run_in_executor(LOOK_UPS, resolve, host, port)
            reader, writer = await asyncio.open_connection(*place, **secured)
            try:
                return await _read(reader, writer, parts, grew)
            finally:
                writer.transport.abort()
    except (OSError, h11.RemoteProtocolError):
        raise ApiError("the image could not be fetched in time: send the image itself", param="messages") from None


async def _read(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, parts: SplitResult, grew: Callable[[int], None]
) -> bytes:
    """Asked for over a line to its host."""
    line, data = h11.Connection(h11.CLIENT), bytearray()
    headers = {"Host": parts.netloc.lower(), "Accept": "image/*", "User-Agent": "arr-coc", "Connection": "close"}
    target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    asked = h11.Request(method="GET", target=target, headers=[*headers.items()])
    writer.write((line.send(asked) or b"") + (line.send(h11.EndOfMessage()) or b""))
    while not isinstance(event := line.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            line.receive_data(await reader.read(PIECE))
        elif isinstance(event, h11.Response) and event.status_code != 200:
            told = f"the image's host answers {event.status_code}; redirects are not followed"
            raise ApiError(told, param="messages")
        elif isinstance(event, h11.Data):
            data += event.data
            _check_size(len(data))
            grew(len(data))
    return bytes(data)


@cache
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context()
