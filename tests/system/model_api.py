"""A stand-in for a model's API on loopback: it asks for one shell command, and then says that it is done.

It speaks the part of the Responses API (https://platform.openai.com/docs/api-reference/responses) that the
Codex CLI needs for one turn with one tool call.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USAGE = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}


@dataclass
class Model:
    """What the stand-in says and hears.

    Args:
        command: the shell command that it asks for.
        port: where it listens.
        outputs: what the harness sent back of the command's output.
    """

    command: str
    port: int = 0
    outputs: list[str] = field(default_factory=list)

    def answer(self, asked: dict[str, object]) -> dict[str, object]:
        """The item that answers one request."""
        given = asked.get("input")
        entries = [entry for entry in given if isinstance(entry, dict)] if isinstance(given, list) else []
        outputs = [entry for entry in entries if str(entry.get("type", "")).endswith("_output")]
        if outputs:
            self.outputs = [json.dumps(entry) for entry in outputs]
            return {
                "type": "message",
                "id": "m1",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "done"}],
            }
        tools = _names(asked.get("tools")) | {
            name for entry in entries if entry.get("type") == "additional_tools" for name in _names(entry.get("tools"))
        }
        call = {"type": "function_call", "id": "f1", "call_id": "c1"}
        if "exec_command" in tools:
            return {**call, "name": "exec_command", "arguments": json.dumps({"cmd": self.command})}
        if "shell_command" in tools:
            return {**call, "name": "shell_command", "arguments": json.dumps({"command": self.command})}
        if "shell" in tools:
            return {**call, "name": "shell", "arguments": json.dumps({"command": ["bash", "-lc", self.command]})}
        script = f"text(JSON.stringify(await tools.exec_command({{cmd: {json.dumps(self.command)}}})))"
        return {"type": "custom_tool_call", "id": "f1", "call_id": "c1", "name": "exec", "input": script}


def _names(tools: object) -> set[str]:
    found: set[str] = set()
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, dict):
            found |= {str(tool.get("name", ""))} | _names(tool.get("tools"))
    return found


@contextmanager
def serving(command: str) -> Iterator[Model]:
    """Serve on a free port of loopback until the block ends."""
    model = Model(command)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._send(json.dumps({"data": [], "models": []}), "application/json")

        def do_POST(self) -> None:
            raw = self._body()
            if self.headers.get("Content-Encoding") == "gzip":
                raw = gzip.decompress(raw)
            item = model.answer(json.loads(raw or b"{}"))
            events = [
                {"type": "response.created", "response": {"id": "r1"}},
                {"type": "response.output_item.done", "output_index": 0, "item": item},
                {"type": "response.completed", "response": {"id": "r1", "usage": USAGE}},
            ]
            text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
            self._send(text, "text/event-stream")

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _send(self, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
