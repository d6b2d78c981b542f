"""``kbs:///REPOSITORY/TYPE/TAG``: a resource of the key broker of a confidential virtual machine or container.

Asked for at the confidential data hub on loopback, which attests the machine to the broker and hands the secret over.
``REPOAGENT_KBS_URL`` replaces its address, ``http://127.0.0.1:8006``.
"""

import os
from typing import Final
from urllib.parse import quote

from repoagent.api import InvalidArgumentError, NotFoundError, UnavailableError
from repoagent_decrypt.providers.http import HttpRequest, check_base_url
from repoagent_decrypt.providers.reference import parse_reference

_VARIABLE: Final = "REPOAGENT_KBS_URL"
_DEFAULT: Final = "http://127.0.0.1:8006"


def fetch(uri: str) -> bytes:
    """The resource that ``uri`` names."""
    reference = parse_reference(uri)
    parts = reference.parts()
    if reference.host or reference.field or len(parts) != 3:
        raise InvalidArgumentError(f"the key reference {reference} should look like kbs:///repository/type/tag")
    base = check_base_url(os.environ.get(_VARIABLE) or _DEFAULT, _VARIABLE)
    path = "/".join(quote(part, safe="") for part in parts)
    # On loopback: never through a proxy that the environment names.
    answer = HttpRequest("the confidential data hub", f"{base}/cdh/resource/{path}", use_proxy=False).send()
    if answer.status == 404:
        raise NotFoundError(f"the confidential data hub has no resource for the key reference {reference}")
    if answer.status != 200:
        raise UnavailableError(
            f"the confidential data hub refuses the key reference {reference} (HTTP {answer.status})"
        )
    return answer.body
