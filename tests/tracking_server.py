"""A tracking server on loopback that answers, hangs or fails, as a test asks it to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EXPERIMENT = {"experiment_id": "1", "name": "test", "lifecycle_stage": "active"}
RUN = {
    "info": {
        "run_id": "0" * 32,
        "run_uuid": "0" * 32,
        "run_name": "made up",
        "experiment_id": "1",
        "status": "RUNNING",
        "start_time": 0,
        "artifact_uri": "mlflow-artifacts:/0",
        "lifecycle_stage": "active",
    },
    "data": {},
}


@dataclass
class TrackingServer:
    """What the server does, and what it was asked.

    Args:
        healthy: So many requests are answered before `then` begins.
        then: ``hang`` (accept, never answer), ``fail`` (status 500) or ``slow`` (answer late).
        seconds: How late a slow answer is.
    """

    healthy: int
    then: str
    seconds: float = 0.0
    uri: str = ""
    asked: list[str] = field(default_factory=list)


@contextmanager
def tracking_server(healthy: int, then: str, seconds: float = 0.0) -> Iterator[TrackingServer]:
    """Serve on a free port of this machine until the block ends."""
    server = TrackingServer(healthy, then, seconds)
    stopping = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server.asked.append(self.path)
            if len(server.asked) > server.healthy:
                if server.then == "hang":
                    stopping.wait()
                    return
                if server.then == "fail":
                    self.send_error(500)
                    return
                time.sleep(server.seconds)
            body = json.dumps(_content(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = answer

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.uri = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        stopping.set()
        http.shutdown()
        http.server_close()
        thread.join()


def _content(path: str) -> dict[str, Any]:
    if "experiments" in path:
        return {"experiment": EXPERIMENT, "experiment_id": "1"}
    if any(f"runs/{verb}" in path for verb in ("create", "get", "update")):
        return {"run": RUN, "run_info": RUN["info"]}
    return {}
