"""One file over HTTP, going on where it ends."""

import http.client
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from pesky import __version__
from pesky.lab.fetching.delivery import SourceError, Watch

__all__ = ["download", "host_of"]

_TIMEOUT = 10  # seconds to connect, and between two pieces of an answer
_PIECE = 1 << 16
_RANGE_NOT_SATISFIABLE = 416


def download(url: str, part: Path, watch: Watch, size: int | None = None) -> None:
    """Download into `part`, going on where it ends, again and again as long as that brings bytes."""
    done = _size(part)
    while size is None or done < size:
        if _download_once(url, part, watch, size):
            return
        before, done = done, _size(part)
        if done <= before:
            raise SourceError("the transfer breaks off")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _download_once(url: str, part: Path, watch: Watch, size: int | None) -> bool:
    """Append what the server still has; return whether that was all."""
    done = _size(part)
    try:
        response = _ask(url, done)
    except urllib.error.HTTPError as error:
        if error.code != _RANGE_NOT_SATISFIABLE or not done:
            raise SourceError(f"HTTP {error.code}") from None
        if error.headers.get("Content-Range") == f"bytes */{done}":
            return True
        part.unlink()  # longer than the file: of something else
        return _download_once(url, part, watch, size)
    with response:
        if response.status == http.client.PARTIAL_CONTENT:
            if not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
                raise SourceError("it sends another range than asked for")
        else:  # a server that knows no ranges
            done = 0
        total = _total(response, done)
        watch.begin(f"{Path(urlsplit(url).path).name} from {host_of(url)}", done, total or size)
        with part.open("ab" if done else "wb") as sink:
            while piece := _piece(response):
                sink.write(piece)
                watch.advance(len(piece))
                done += len(piece)
                if size is not None and done > size:
                    break  # the sum will tell
    return piece is not None and (total is None or done >= total)


def _ask(url: str, done: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": f"pesky/{__version__}"}
    if done:
        headers["Range"] = f"bytes={done}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise
    except urllib.error.URLError as error:
        raise SourceError(_reason(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(_reason(error)) from None
    assert isinstance(response, http.client.HTTPResponse)
    return response


def _reason(error: object) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def _total(response: http.client.HTTPResponse, done: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    return done + int(length) if length.isdecimal() else None


def _piece(response: http.client.HTTPResponse) -> bytes | None:
    """Return what comes next: nothing at the end, None if the transfer breaks off."""
    try:
        return response.read(_PIECE)
    except (OSError, http.client.HTTPException):
        return None


def host_of(url: str) -> str:
    """Return who is asked."""
    return urlsplit(url).netloc
