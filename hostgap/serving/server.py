"""Requests to a serving engine, over the standard library's urllib.

Redirects are not followed and a key is never part of an error: a key belongs to the server that
the user named, and to no other.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hostgap.errors import HostgapError
from hostgap.output.printable import printable

T = TypeVar("T")
REQUEST_S = 30.0  # a busy server's frontend shares its interpreter with the profiler
MAX_BODY = 64 << 20  # bytes of an answer; /metrics of a large deployment is a few MB


class Unreachable(HostgapError):
    """No answer: the connection was refused, reset or not made in time.

    Attributes:
        gone: nothing listens there, or it hung up; False when it only took too long.
    """

    gone = True


class TooSlow(Unreachable):
    """The server took the request and did not answer in time."""

    gone = False


class KeyRefused(HostgapError):
    """HTTP 401 or 403: no key, or not the right one for this endpoint."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said.

    Attributes:
        status: the HTTP status.
        body: the text, as UTF-8 with what is not replaced.
    """

    status: int
    body: str

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; empty when it is none."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def text(self, key: str) -> str | None:
        """A text of the JSON object, printable and short; None where there is none."""
        value = self.json().get(key)
        return printable(value, 200) if isinstance(value, str) else None

    def why(self) -> str:
        """What the server gives as the reason, on one line and short; may be empty."""
        found = self.json()
        inner = found.get("error")
        if isinstance(inner, dict):
            found = inner
        said = found.get("message") or found.get("detail") or inner or self.body
        return printable(" ".join(str(said).split()), 200)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET, and the key would go to another host."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Server:
    """A server at `url`, which ends in no slash.

    Build it with `Server.at`, which checks the URL.
    """

    url: str
    _key: str | None = field(default=None, repr=False)

    @staticmethod
    def at(url: str, api_key: str | None = None) -> Server:
        """The server at `url`.

        Raises:
            HostgapError: it is no http(s) URL, holds credentials, or the key cannot be sent.
        """
        what = "give it as http://HOST:PORT"
        # before urlsplit, which drops tabs and newlines
        if any(not char.isprintable() or char.isspace() for char in url):
            raise HostgapError("the URL holds spaces or control characters", what)
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise HostgapError(f"not a URL: {error}", what) from None
        if parts.username is not None or parts.password is not None:
            raise HostgapError("the URL holds credentials", "give a key with --api-key")
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise HostgapError(f"{url} is not an http or https URL", what)
        if parts.query or parts.fragment:
            raise HostgapError(f"{url} has a query or a fragment", what)
        if not url.isascii():
            raise HostgapError(f"{url} is not plain ASCII", what)
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise HostgapError("the API key holds characters that no header can")
        return Server(url.rstrip("/"), api_key or None)

    def get(self, path: str, *, timeout_s: float = REQUEST_S) -> Answer:
        """GET a path such as "/metrics".

        Raises:
            Unreachable: there was no answer.
            KeyRefused: it asks for a key, or for another one.
            HostgapError: it redirects.
        """
        return self._send("GET", path, None, timeout_s)

    def post(
        self, path: str, payload: Mapping[str, object] | None, *, timeout_s: float = REQUEST_S
    ) -> Answer:
        """POST JSON, or nothing, to a path; raises as `get` does."""
        return self._send("POST", path, payload, timeout_s)

    def alive(self) -> bool:
        """Whether something answers, whatever it says; a slow server is alive."""
        try:
            self.get("/version", timeout_s=5)
        except Unreachable as error:
            return not error.gone
        except HostgapError:  # it answered, though not as wished
            return True
        return True

    def _send(
        self, method: str, path: str, payload: Mapping[str, object] | None, timeout_s: float
    ) -> Answer:
        data = b"" if method == "POST" else None
        headers = {"Accept": "*/*"}
        if payload is not None:
            data = json.dumps(payload).encode()
            headers["Content-Type"] = "application/json"
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        url = self.url + path
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            answer, where = _in_time(lambda: self._exchange(request, timeout_s), timeout_s)
        except TimeoutError:
            raise _too_slow(url, timeout_s) from None
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise _too_slow(url, timeout_s) from None
            raise self._unreachable(error.reason) from None
        except (http.client.HTTPException, OSError, UnicodeError) as error:  # or a host of no name
            raise self._unreachable(error) from None
        if 300 <= answer.status < 400:
            raise HostgapError(f"{url} redirects to {where}", "give the URL of the server itself")
        if answer.status in (401, 403):
            raise KeyRefused(
                f"{url}: refused (HTTP {answer.status})",
                "give the server's key with --api-key or HOSTGAP_API_KEY"
                if self._key is None
                else "the server does not take this API key here",
            )
        return answer

    def _exchange(self, request: urllib.request.Request, timeout_s: float) -> tuple[Answer, str]:
        """Send a request; the answer, whatever its status, and where it redirects to."""
        try:
            with self._opener().open(request, timeout=timeout_s) as reply:
                return Answer(reply.status, reply.read(MAX_BODY).decode("utf-8", "replace")), ""
        except urllib.error.HTTPError as error:
            with error:
                body = error.read(MAX_BODY).decode("utf-8", "replace")
                return Answer(error.code, body), str(error.headers.get("Location", "elsewhere"))

    def _unreachable(self, reason: object) -> Unreachable:
        said = str(getattr(reason, "strerror", None) or reason or type(reason).__name__)
        return Unreachable(
            f"{self.url}: cannot be reached: {said}", "is the server running, and is this its URL?"
        )

    def _opener(self) -> urllib.request.OpenerDirector:
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if _is_loopback(urllib.parse.urlsplit(self.url).hostname or ""):
            # a company's proxy cannot reach this machine's own server
            handlers.append(urllib.request.ProxyHandler({}))
        return urllib.request.build_opener(*handlers)


def _in_time(call: Callable[[], T], timeout_s: float) -> T:
    """What a call returns or raises; urllib's own timeout is for each read, and not for all.

    Raises:
        TimeoutError: it takes longer. It is left to itself then.
    """
    done: list[T | Exception] = []

    def run() -> None:
        try:
            done.append(call())
        except Exception as error:  # noqa: BLE001  raised below, in the caller's thread
            done.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s + 1)
    if not done:
        raise TimeoutError
    if isinstance(done[0], Exception):
        raise done[0]
    return done[0]


def _too_slow(url: str, timeout_s: float) -> TooSlow:
    return TooSlow(
        f"{url}: no answer within {timeout_s:g} s", "is the server overloaded? try again"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
