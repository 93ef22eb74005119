"""One file over HTTP that survives cuts, stalls, kills and servers that answer nonsense.

An address, a SHA-256 and a target enter; the verified file lies at the target. Called by `wheels`
and `hub_fetch`. Bytes wait in `NAME.part` beside the target, and every attempt goes on behind the
last one.
"""

from __future__ import annotations

import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn
from urllib.parse import urlsplit

from meshinfer.core.ids import Digest
from meshinfer.errors import MeshInferError, ModelNotFound, ShardCorrupt, TimedOut
from meshinfer.weights.disk import disk_errors, file_digest

_READ_BYTES = 1 << 18
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_SAY_AGAIN = frozenset({408, 425, 429})

Check = Callable[[Path], bool]
"""Whether a whole file is the right one."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who sends the file: what only that host may hear, and what to say when it does not work."""

    promise: str = "the package index promises"
    unreachable: str = (
        "Check this PC's way to the package index (proxy, certificates), then try again."
    )
    refused: str = "Check pip's index settings."
    # Never shown, and never sent to another host that the first one points to.
    secret_headers: Mapping[str, str] = field(default_factory=dict, repr=False)


PACKAGE_INDEX = Origin()


@dataclass(frozen=True, slots=True)
class Persistence:
    """How long to try. The count of failures starts anew whenever bytes arrived."""

    stall_s: float = 15.0  # without a byte: a cut
    failures: int = 6
    first_wait_s: float = 0.5
    longest_wait_s: float = 8.0
    corrupt: int = 2  # whole files with a wrong digest

    def wait_s(self, failures: int) -> float:
        doubled = self.first_wait_s * 2.0 ** min(failures - 1, 16)
        return min(self.longest_wait_s, doubled)


class _AttemptFailed(Exception):
    """Worth another attempt; the text says what happened."""


class Download:
    """`told` hears how many bytes of the file are here; `limit` is the most that it may have.
    `right` is the file's SHA-256, or another check of the whole."""

    def __init__(
        self,
        url: str,
        right: Digest | Check,
        limit: int,
        told: Callable[[int], None],
        persistence: Persistence = Persistence(),
        sleep: Callable[[float], None] = time.sleep,
        origin: Origin = PACKAGE_INDEX,
    ) -> None:
        if urlsplit(url).scheme not in ("https", "http", "file"):
            raise ModelNotFound(f"'{url}' is no address that meshinfer downloads from.")
        self._url = url
        self._right = right
        self._limit = limit
        self._told = told
        self._persistence = persistence
        self._sleep = sleep
        self._origin = origin
        self._opener = make_opener(os.environ)

    def run(self, target: Path) -> None:
        """Have the file at `target`. Blocks. Raises TimedOut (nobody answers, or only nonsense),
        ModelNotFound (refused for good), ShardCorrupt (wrong digest twice), DiskFull."""
        part = target.with_name(f"{target.name}.part")
        with disk_errors(target.parent):
            for _ in range(self._persistence.corrupt):
                self._fill(part)
                if self._is_right(part):
                    part.replace(target)
                    return
                part.unlink()
        raise ShardCorrupt(
            f"{target.name} does not have the digest that {self._origin.promise}.",
            "Try again; if it happens again, something on the way changes the file.",
        )

    def _is_right(self, part: Path) -> bool:
        if callable(self._right):
            return self._right(part)
        return file_digest(part) == self._right

    def _fill(self, part: Path) -> None:
        """Attempt after attempt until the server says that all bytes are here."""
        failures = 0
        if part.exists() and _size(part) == self._limit:
            return  # killed between the last byte and the rename
        while True:
            before = _size(part)
            try:
                self._attempt(part)
            except _AttemptFailed as error:
                failures = 1 if _size(part) > before else failures + 1
                if failures >= self._persistence.failures:
                    raise TimedOut(f"{self._host} {error}.", self._origin.unreachable) from error
                self._sleep(self._persistence.wait_s(failures))
            else:
                return

    def _attempt(self, part: Path) -> None:
        """Raises _AttemptFailed whenever not all bytes are here."""
        offset = _size(part)
        try:
            answer = self._open(offset)
        except urllib.error.HTTPError as error:
            self._refused(error, part)
        except urllib.error.URLError as error:
            if isinstance(error.reason, FileNotFoundError):
                raise ModelNotFound(f"{self._url} does not exist.") from error
            raise _AttemptFailed(f"cannot be reached ({error.reason})") from error
        except (http.client.HTTPException, OSError) as error:
            raise _AttemptFailed(f"does not answer ({_words(error)})") from error
        with answer:
            start, total = self._checked(answer, offset)
            self._copy(answer, part, start, total)

    def _open(self, offset: int) -> Any:
        # A compressed answer would have other bytes than those that the digest covers.
        headers = {"Accept-Encoding": "identity", "User-Agent": "meshinfer"}
        headers.update(self._origin.secret_headers)
        if offset:
            headers["Range"] = f"bytes={offset}-"
        request = urllib.request.Request(self._url, headers=headers)
        return self._opener.open(request, timeout=self._persistence.stall_s)

    def _checked(self, answer: Any, offset: int) -> tuple[int, int | None]:
        """Where the body starts in the file, and the file's size when the server tells it.

        Nothing is written before this: an error page never becomes part of a file.
        """
        status, headers = getattr(answer, "status", None), answer.headers
        if headers.get_content_type() in ("text/html", "application/xhtml+xml"):
            raise _AttemptFailed("answers with a web page instead of the file")
        if headers.get("Content-Encoding", "identity") != "identity":
            raise _AttemptFailed("compresses the file on the way")
        length = headers.get("Content-Length", "")
        size = int(length) if length.isdigit() else None
        if status == 206:
            return self._checked_range(headers.get("Content-Range", ""), offset, size)
        if status not in (200, None):  # None: a file: address
            raise _AttemptFailed(f"answers {status}")
        self._check_limit(size)
        return 0, size

    def _checked_range(self, text: str, offset: int, size: int | None) -> tuple[int, int | None]:
        span = _RANGE.fullmatch(text.strip())
        if span is None or int(span[1]) != offset:
            raise _AttemptFailed(f"answers with another range than was asked ('{text[:60]}')")
        end = int(span[2]) + 1
        if size is not None and size != end - offset:
            raise _AttemptFailed("announces a range and a length that differ")
        total = end if span[3] == "*" else int(span[3])
        self._check_limit(total)
        return offset, total

    def _check_limit(self, size: int | None) -> None:
        if size is not None and size > self._limit:
            raise _AttemptFailed(f"announces {size} bytes where {self._limit} are the most")

    def _copy(self, answer: Any, part: Path, start: int, total: int | None) -> None:
        end = self._limit if total is None else total
        with part.open("r+b" if part.exists() else "wb") as file:
            file.seek(start)
            file.truncate()
            done = self._pour(answer, file, start, end)
        if total is None and done > end:
            part.unlink()
            raise _AttemptFailed(f"sends more than {self._limit} bytes")
        if total is not None and done < total:
            raise _AttemptFailed(f"ended the download after {done} of {total} bytes")

    def _pour(self, answer: Any, file: IO[bytes], done: int, end: int) -> int:
        """Never writes past `end`; counts one byte more when there is one."""
        while chunk := self._read(answer):
            done += len(chunk)
            if done > end:
                file.write(chunk[: len(chunk) - (done - end)])
                return end + 1
            file.write(chunk)
            self._told(done)
        return done

    def _read(self, answer: Any) -> bytes:
        read = getattr(answer, "read1", answer.read)  # what has arrived, not a full buffer
        try:
            chunk: bytes = read(_READ_BYTES)
        except (http.client.HTTPException, OSError) as error:  # TLS errors are OSErrors
            raise _AttemptFailed(f"cut the download ({_words(error)})") from error
        return chunk

    def _refused(self, error: urllib.error.HTTPError, part: Path) -> NoReturn:
        """Raises what an error status means; its body is never read."""
        status = error.code
        error.close()
        if status == 416:
            # The server's file ends before ours does: ours is another or spoilt.
            part.unlink(missing_ok=True)
        if status in _SAY_AGAIN or status >= 500 or status == 416:
            raise _AttemptFailed(f"answers {status}") from error
        raise ModelNotFound(
            f"{self._host} refuses the file ({status}).", self._origin.refused
        ) from error

    @property
    def _host(self) -> str:
        return urlsplit(self._url).hostname or "The file"


def make_opener(environment: Mapping[str, str]) -> urllib.request.OpenerDirector:
    """Proxies as urllib finds them; certificates from what pip and others read: PIP_CERT, then
    REQUESTS_CA_BUNDLE, then SSL_CERT_FILE (which OpenSSL reads by itself), else the system's."""
    # This TLS is to a package index on the web, not to a PC of the fleet: link/ has no part in it.
    import ssl

    bundle = environment.get("PIP_CERT") or environment.get("REQUESTS_CA_BUNDLE")
    place = Path(bundle) if bundle else None
    try:
        context = ssl.create_default_context(
            cafile=str(place) if place is not None and not place.is_dir() else None,
            capath=str(place) if place is not None and place.is_dir() else None,
        )
    except OSError as error:
        raise _unusable_bundle(place) from error
    return urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context), _KeepSecretsAtHome()
    )


class _KeepSecretsAtHome(urllib.request.HTTPRedirectHandler):
    """A redirect to another host or port goes without what only the first one may hear."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        again = super().redirect_request(req, fp, code, msg, headers, newurl)
        if again is not None and _place(again.full_url) != _place(req.full_url):
            again.remove_header("Authorization")
        return again


def _place(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _unusable_bundle(place: Path | None) -> MeshInferError:
    return ModelNotFound(
        f"The certificate bundle {place} cannot be read.",
        "Mend PIP_CERT or REQUESTS_CA_BUNDLE.",
    )


def _size(part: Path) -> int:
    try:
        return part.stat().st_size
    except FileNotFoundError:
        return 0


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
