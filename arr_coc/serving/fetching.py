"""Images by their address: data URIs, and http(s) of hosts that the operator named.

A host's name is resolved once, every address it has must be one of the public network, and the connection goes to the
very address that was checked. Redirects are not followed, and what comes is bounded in bytes and in time.
"""

import base64
import binascii
import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from arr_coc.images.reader import MOST_BYTES
from arr_coc.serving.reading import ApiError

SECONDS = 10.0  # for one image, from the first byte to the last
PORTS = {"http": 80, "https": 443}
DATA = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)
PLAIN = re.compile(r"[\x21-\x5b\x5d-\x7e]+")  # printable ASCII without spaces and backslashes
EMBEDDING = [ipaddress.ip_network(one) for one in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")]


def image_bytes(address: str, domains: Collection[str]) -> bytes:
    """The file at an address; `domains` are the hosts that may be fetched from."""
    if found := DATA.match(address):
        try:
            data = base64.b64decode(address[found.end() :], validate=True)
        except (binascii.Error, ValueError):
            raise ApiError("the image's base64 is broken: encode the whole file once", param="messages") from None
        _check_size(len(data))
        return data
    if address[:5].lower() == "data:":
        raise ApiError("a data URI here is an image: begin it with data:image/png;base64,", param="messages")
    return fetch(check_address(address, domains))


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


def fetch(parts: SplitResult) -> bytes:
    """What a checked address holds."""
    host, until = str(parts.hostname), time.monotonic() + SECONDS
    place = resolve(host, parts.port or PORTS[parts.scheme])
    connection = http.client.HTTPConnection(host, place[1], timeout=SECONDS)
    lines: list[socket.socket] = []
    hang_up = threading.Timer(SECONDS, _hang_up, [lines])  # a host that sends byte by byte never keeps a read waiting
    try:
        lines.append(socket.create_connection(place, SECONDS))
        hang_up.start()
        if parts.scheme == "https":
            context = ssl.create_default_context()
            secured = context.wrap_socket(lines[0], server_hostname=host, do_handshake_on_connect=False)
            lines.append(secured)
            secured.do_handshake()
        connection.sock = lines[-1]
        target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
        connection.request("GET", target, headers={"Accept": "image/*", "User-Agent": "arr-coc"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ApiError(f"the image's host answers {answer.status}; redirects are not followed", param="messages")
        data = bytearray()
        while piece := answer.read1(1 << 16):
            data += piece
            _check_size(len(data))
        if time.monotonic() > until:  # what was hung up on is not whole
            raise TimeoutError
    except (OSError, http.client.HTTPException):
        raise ApiError("the image could not be fetched in time: send the image itself", param="messages") from None
    finally:
        hang_up.cancel()
        connection.close()
    return bytes(data)


def _hang_up(lines: list[socket.socket]) -> None:
    with suppress(OSError):
        lines[-1].shutdown(socket.SHUT_RDWR)
