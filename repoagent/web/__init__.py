"""HTTP for what fetches: only to hosts that may be asked, redirects checked, answers limited."""

from repoagent.web.client import WebAnswer, WebClient, WebError, WebResponse
from repoagent.web.hosts import HOSTS_VARIABLE, Hosts
from repoagent.web.urls import Origin, origin_of

__all__ = ["HOSTS_VARIABLE", "Hosts", "Origin", "WebAnswer", "WebClient", "WebError", "WebResponse", "origin_of"]
