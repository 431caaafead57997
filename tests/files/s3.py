"""A small S3 server: objects, ranges, conditional and multipart uploads; enough for a client of
the real thing. It can be told to fail."""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


class Bucket:
    """What the server has, by path; `parts` of uploads that are not complete."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.failing = False
        self.lock = threading.Lock()
        self.port = 0

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "region": "us-east-1",
            "access_key_id": "key",
            "secret_access_key": "not-a-secret",
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _asked(self) -> tuple[str, dict[str, list[str]], bytes]:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        return unquote(parts.path), parse_qs(parts.query, keep_blank_values=True), body

    def _refused(self, code: str, status: int) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def do_PUT(self) -> None:
        path, query, body = self._asked()
        tag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        with self.bucket.lock:
            taken = self.headers.get("if-none-match") == "*" and path in self.bucket.objects
            if self.bucket.failing:
                self._refused("AccessDenied", 403)
            elif taken:
                self._refused("PreconditionFailed", 412)
            elif "uploadId" in query:
                self.bucket.parts[query["uploadId"][0]][int(query["partNumber"][0])] = body
                self._answer(200, etag=tag)
            else:
                self.bucket.objects[path] = body
                self._answer(200, etag=tag)

    def do_POST(self) -> None:
        path, query, body = self._asked()
        with self.bucket.lock:
            if self.bucket.failing:
                self._refused("AccessDenied", 403)
            elif "delete" in query:
                keys = re.findall("<Key>(.*?)</Key>", body.decode())
                for key in keys:
                    self.bucket.objects.pop(f"{path.rstrip('/')}/{key}", None)
                told = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                self._answer(200, f"<DeleteResult>{told}</DeleteResult>".encode())
            elif "uploads" in query:
                upload = f"u{len(self.bucket.parts)}"
                self.bucket.parts[upload] = {}
                told = f"<UploadId>{upload}</UploadId>"
                kind = "InitiateMultipartUploadResult"
                self._answer(200, f"<{kind}>{told}</{kind}>".encode())
            else:
                parts = self.bucket.parts.pop(query["uploadId"][0])
                self.bucket.objects[path] = b"".join(parts[number] for number in sorted(parts))
                kind = "CompleteMultipartUploadResult"
                self._answer(200, f'<{kind}><ETag>"whole"</ETag></{kind}>'.encode())

    def do_GET(self) -> None:
        path, _query, _body = self._asked()
        with self.bucket.lock:
            body = self.bucket.objects.get(path)
        known = {"etag": '"x"', "last_modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if self.bucket.failing:
            self._refused("AccessDenied", 403)
        elif body is None:
            self._refused("NoSuchKey", 404)
        elif asked is None:
            self._answer(200, body, **known)
        else:
            first, last = int(asked[1]), min(int(asked[2] or len(body) - 1), len(body) - 1)
            told = f"bytes {first}-{last}/{len(body)}"
            self._answer(206, body[first : last + 1], content_range=told, **known)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        _path, query, _body = self._asked()
        with self.bucket.lock:
            if self.bucket.failing:
                self._refused("AccessDenied", 403)
            else:
                self.bucket.parts.pop(query["uploadId"][0], None)
                self._answer(204)


@contextmanager
def s3_server() -> Iterator[Bucket]:
    bucket = Bucket()
    handler = type("Handler", (_Handler,), {"bucket": bucket})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    bucket.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
