"""Access to a container registry: Basic, or tokens that it gives for a while."""

import base64
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from repoagent.api import AgentModel, InvalidArgumentError, UnavailableError, WebAnswer, WebClient, read_token
from repoagent_fetch.options import Options
from repoagent_fetch.server_answers import document

if TYPE_CHECKING:
    from repoagent_fetch.registry import Reference

__all__ = ["Login"]

_PART: Final = re.compile(r'(?<![a-zA-Z_])([a-zA-Z_]+)="([^"]*)"')


class Login:
    """What a registry wants to see with requests, found out when it refuses one. Thread-safe."""

    def __init__(self, model: AgentModel, options: Options, client: WebClient, reference: "Reference") -> None:
        """Ask nothing yet. Secrets are looked up when they are needed, and again when they are refused."""
        self._model = model
        self._options = options
        self._client = client
        self._reference = reference
        self._own = reference.base.partition("/v2/")[0]
        self._lock = threading.Lock()
        self._header = ""

    def headers(self, again: bool) -> Mapping[str, str]:
        """For requests of blobs; ``again`` after a refusal."""
        with self._lock:
            if again or not self._header:
                self._renew()
            return self._known()

    def fetch(self, url: str, *, accept: str, limit: int) -> WebAnswer:
        """A small answer, asked for again with credentials if the registry wants them."""
        answer = self._client.fetch(url, headers={"Accept": accept, **self._known()}, limit=limit)
        if answer.status != 401:
            return answer
        with self._lock:
            self._accept(answer)
        return self._client.fetch(url, headers={"Accept": accept, **self._known()}, limit=limit)

    def _known(self) -> Mapping[str, str]:
        return {"Authorization": self._header} if self._header else {}

    def _renew(self) -> None:
        answer = self._client.fetch(f"{self._reference.base}/tags/list?n=1", limit=1 << 20)
        if answer.status == 401:
            self._accept(answer)

    def _accept(self, refusal: WebAnswer) -> None:
        """Do what the refusal asks for: that of the registry itself, not of where it redirected to."""
        if not refusal.url.startswith(f"{self._own}/"):
            raise UnavailableError(
                f"the registry {self._reference.host} redirects to a server that wants a login of its own, which is "
                "not supported"
            )
        scheme, _, rest = refusal.headers.get("www-authenticate", "").partition(" ")
        if scheme.lower() == "basic":
            self._header = self._basic()
        elif scheme.lower() == "bearer":
            self._header = f"Bearer {self._token(dict(_PART.findall(rest)))}"
        else:
            raise UnavailableError(f"the registry {self._reference.host} wants a way to log in that is not supported")

    def _basic(self) -> str:
        if not self._options.username or not self._options.password:
            raise UnavailableError(
                f"the registry {self._reference.host} wants a name and a password: give 'username' and 'password'"
            )
        pair = b":".join(self._model.key(one).strip() for one in (self._options.username, self._options.password))
        return f"Basic {base64.b64encode(pair).decode()}"

    def _token(self, parts: Mapping[str, str]) -> str:
        realm = parts.get("realm", "")
        if not realm.startswith(("https://", f"{self._own}/")):
            raise InvalidArgumentError(
                f"the registry {self._reference.host} sends to {realm[:100]!r} for a token, which is not https"
            )
        if self._options.token:
            return read_token(self._model.key, self._options.token)
        query = {name: parts[name] for name in ("service", "scope") if name in parts}
        query.setdefault("scope", f"repository:{self._reference.name}:pull")
        sent = {"Authorization": self._basic()} if self._options.username else {}
        between = "&" if "?" in realm else "?"
        answer = self._client.fetch(f"{realm}{between}{urlencode(query)}", headers=sent)
        given = document(answer, f"the token of the registry {self._reference.host}")
        token = (given.get("token") or given.get("access_token")) if isinstance(given, dict) else None
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise InvalidArgumentError(f"the registry {self._reference.host} gave no valid token")
        return token
