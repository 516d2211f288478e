"""A viewer in this process, and a client that sends what it is told to, byte for byte."""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

from shardprep.dataset.open_dataset import open_dataset
from shardprep.reporter.viewer import viewer
from shardprep.reporter.viewer.server import Server


@dataclass(frozen=True)
class Got:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class Client:
    port: int
    cookie: str = ""

    def send(self, data: bytes) -> Got:
        """Send bytes; return the answer, read to the end of the connection."""
        with socket.create_connection(("127.0.0.1", self.port), 20) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return answer(connection, data.partition(b" ")[0].decode("latin-1"))

    def get(self, target: str, *headers: str, method: str = "GET", host: str = "localhost") -> Got:
        """Send a request with the cookie."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers]
        if self.cookie:
            lines.append(f"Cookie: {self.cookie}")
        return self.send("\r\n".join([*lines, "Connection: close", "", ""]).encode())

    def page(self, target: str) -> str:
        found = self.get(target)
        assert found.status == 200, found
        return found.text


def answer(connection: socket.socket, method: str = "GET") -> Got:
    made = HTTPResponse(connection, method=method)
    made.begin()
    pairs = [(name.lower(), value) for name, value in made.getheaders()]
    assert len(pairs) == len(dict(pairs))
    return Got(made.status, dict(pairs), made.read())


@dataclass
class Served:
    viewer: viewer.Viewer
    server: Server
    client: Client
    stranger: Client
    """A client without the cookie."""


@contextmanager
def served(dataset: str | Path) -> Iterator[Served]:
    made: list[Server] = []

    def remembered(*arguments: Any) -> Server:
        made.append(Server(*arguments))
        return made[0]

    with mock.patch.object(viewer, "Server", remembered):
        one = viewer.serve(open_dataset(dataset), 0, ExitStack())
    with one, entered(one) as client:
        yield Served(one, made[0], client, Client(client.port))


@contextmanager
def entered(one: viewer.Viewer) -> Iterator[Client]:
    address = urlsplit(one.url)
    client = Client(address.port or 0)
    found = client.get(f"/?{address.query}")
    assert (found.status, found.headers["location"]) == (303, "/")
    client.cookie = found.headers["set-cookie"].partition(";")[0]
    yield client


def items_of(page: str) -> list[int]:
    return [int(one) for one in re.findall(r'<li><a href="/item/(\d+)', page)]
