"""A server that answers a byte at a time, and files that are none."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from hostgap.serving.files import listing
from hostgap.serving.server import Server, TooSlow
from hostgap.serving.vllm import Vllm


def test_a_server_that_drips_its_answer_is_too_slow() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            try:
                for byte in b"HTTP/1.1 200 OK\r\n" * 100:
                    connection.sendall(bytes([byte]))
                    time.sleep(0.2)
            except OSError:
                return  # it was given up, as it should be

    threading.Thread(target=drip, daemon=True).start()
    server = Server.at(f"http://127.0.0.1:{listener.getsockname()[1]}")
    begun = time.monotonic()
    with pytest.raises(TooSlow):
        server.get("/version", timeout_s=0.5)
    assert time.monotonic() - begun < 5
    listener.close()


def test_only_regular_files_are_traces(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x_rank0.pt.trace.json")
    (tmp_path / "zero_rank0.pt.trace.json").symlink_to("/dev/zero")
    (tmp_path / "y_rank0.pt.trace.json").write_text("{}", encoding="utf-8")
    assert [path.name for path in listing(tmp_path, Vllm())] == ["y_rank0.pt.trace.json"]
