"""A webhook's receiver that misbehaves in turn: takes, answers 500, hangs, and dies, before or after it has stored.

    receiver.py PORT FILE KEY_FILE

Every third request is taken as it should be; the others go through the list. Stored events are lines of FILE.
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("500", "hang", "die", "store and 500", "store and hang", "store and die", "cut")


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + body
        with open(sys.argv[3], "rb") as file:
            wanted = base64.b64encode(hmac.new(file.read(), signed, hashlib.sha256).digest()).decode()
        if self.headers["webhook-signature"] != f"v1,{wanted}":
            self.answer(401)
            return
        turn = count()
        fault = FAULTS[turn // 3 % len(FAULTS)] if turn % 3 else ""
        if not fault or fault.startswith("store"):
            line = b"".join(json.dumps(event).encode() + b"\n" for event in json.loads(body))
            file = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(file, line)
            os.close(file)
        if fault.endswith("die"):
            os._exit(9)
        if fault.endswith("hang"):
            time.sleep(3600)
        if fault == "cut":
            self.close_connection = True
            self.connection.close()
            return
        self.answer(500 if fault else 204)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def count() -> int:
    """The number of this request, over restarts."""
    with open(sys.argv[2] + ".count", "a+b") as file:
        file.write(b".")
        return file.tell()


if __name__ == "__main__":
    ThreadingHTTPServer.allow_reuse_address = True
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
