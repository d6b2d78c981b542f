"""The metrics page over HTTP."""

from typing import Any

import httpx
from repoagent_server.http.api import metrics_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend


def test_the_metrics_port_has_this_page_alone() -> None:
    front = HttpFrontend(Endpoint(port=0), metrics_service(lambda: "nv_inference_count 1\n"))
    front.start()
    host, port = front.bind()
    try:
        response: Any = httpx.get(f"http://{host}:{port}/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "nv_inference_count" in response.text
        assert httpx.get(f"http://{host}:{port}/v2").status_code == 404
        assert httpx.post(f"http://{host}:{port}/metrics").status_code == 405
    finally:
        front.stop()
