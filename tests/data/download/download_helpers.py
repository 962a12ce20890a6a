"""A local server that fails on request, and small archives."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from dualcba.data.download.published import (
    RemoteFile,
)

CONTENT = np.random.default_rng(0).bytes(300_000)


NAME = "file.bin"


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; each request fails as the next entry of `failures` says, if there is one."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {NAME: CONTENT}
        self.failures: list[tuple[str, int]] = []
        self.ranges: list[str | None] = []
        self.supports_ranges = True
        self.sends_length = True
        self.stop = threading.Event()

    def address(self, name: str = NAME) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"

    def remote(self, content: bytes = CONTENT) -> RemoteFile:
        return RemoteFile(NAME, md5(content), (self.address(),))


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        given = self.headers.get("Range")
        server.ranges.append(given)
        kind, number = server.failures.pop(0) if server.failures else ("whole", 0)
        content = server.files.get(self.path[1:])
        if kind == "status" or content is None:
            self.send_error(number if kind == "status" else 404)
            return
        start = int(given[6:-1]) if given and server.supports_ranges else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self.head(start, len(content))
        self.body(kind, number, content[start:])

    def head(self, start: int, total: int) -> None:
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        if self.server.sends_length:
            self.send_header("Content-Length", str(total - start))
        self.end_headers()

    def body(self, kind: str, number: int, content: bytes) -> None:
        if kind == "slow":  # `number` pieces, with a pause before each
            size = len(content) // number + 1
            for k in range(number):
                time.sleep(0.05)
                self.wfile.write(content[k * size : (k + 1) * size])
            return
        self.wfile.write(content if kind == "whole" else content[:number])
        if kind == "stall":
            self.server.stop.wait(10)

    def log_message(self, *args: object) -> None:
        pass


def listing(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name, content in files.items():
            out.writestr(name, content)
    return path


def make_tar(path: Path, files: dict[str, bytes], **special: Any) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in special.items():
                setattr(info, field, value)
            out.addfile(info, io.BytesIO(content))
    return path
