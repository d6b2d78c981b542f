"""One small HTTP request with a bound on everything. Redirects are refused: they would take a token elsewhere."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from repoagent.api import InvalidArgumentError, UnavailableError

_SECONDS: Final = 10.0
_LARGEST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body, for any status but a redirect."""

    status: int
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request to ``url``; ``service`` is what messages call the other side."""

    service: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    use_proxy: bool = True
    ca_file: str | None = None

    def send(self) -> Answer:
        """Do it: POST if there is a body, else GET.

        Raises:
            UnavailableError: no connection, no answer in 10 seconds, a redirect, or more than 1 MiB.
        """
        request = urllib.request.Request(self.url, data=self.body, headers=dict(self.headers))  # noqa: S310
        try:
            with self._opener().open(request, timeout=_SECONDS) as response:
                return self._answer(response.status, response)
        except urllib.error.HTTPError as error:
            with error:
                return self._answer(error.code, error)
        except (urllib.error.URLError, OSError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise UnavailableError(f"{self.service} at {self._where()} does not answer: {reason}") from None

    def _answer(self, status: int, response: Any) -> Answer:
        body: bytes = response.read(_LARGEST + 1)
        if 300 <= status < 400:
            raise UnavailableError(f"{self.service} at {self._where()} answered with a redirect, which is not followed")
        if len(body) > _LARGEST:
            raise UnavailableError(f"{self.service} at {self._where()} answered with more than {_LARGEST} bytes")
        return Answer(status, body)

    def _opener(self) -> urllib.request.OpenerDirector:
        proxy = urllib.request.ProxyHandler() if self.use_proxy else urllib.request.ProxyHandler({})
        context = ssl.create_default_context(cafile=self.ca_file)
        return urllib.request.build_opener(proxy, urllib.request.HTTPSHandler(context=context), _NoRedirect())

    def _where(self) -> str:
        return urlsplit(self.url).netloc.rpartition("@")[2]


def check_base_url(url: str, variable: str) -> str:
    """``url`` without a final slash, if it is http or https.

    Raises:
        InvalidArgumentError: it is not; ``variable`` is where it came from.
    """
    split = urlsplit(url)
    if split.scheme not in {"http", "https"} or not split.netloc or split.username or split.query:
        raise InvalidArgumentError(f"{variable} is not an http(s) URL of a server")
    return url.rstrip("/")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        return None
