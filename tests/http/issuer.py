"""An OpenID Connect issuer of the tests: a small HTTP server with keys of its own."""

import base64
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

MAKERS = {
    "RS": lambda: rsa.generate_private_key(65537, 2048),
    "PS": lambda: rsa.generate_private_key(65537, 2048),
    "ES": lambda: ec.generate_private_key(ec.SECP256R1()),
    "Ed": ed25519.Ed25519PrivateKey.generate,
}


class Issuer:
    """Serves its description and keys; makes tokens. `asked` lists the paths that were fetched."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"
        self.keys = {}
        self.algorithms = {}
        self.asked = []
        self.description = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
        }
        self.answers = {}  # path to raw bytes instead of the usual answer
        self.broken = False

    def add_key(self, kid, algorithm="RS256", key=None):
        self.keys[kid] = key or MAKERS[algorithm[:2]]()
        self.algorithms[kid] = algorithm
        return self.keys[kid]

    def jwks(self):
        found = []
        for kid, key in self.keys.items():
            algorithm = jwt.get_algorithm_by_name(self.algorithms[kid])
            public = json.loads(algorithm.to_jwk(key.public_key()))
            found.append({**public, "kid": kid, "use": "sig"})
        return {"keys": found}

    def token(self, now, kid="one", headers=None, algorithm=None, key=None, **claims):
        """A token that is good at `now` (seconds), unless claims say otherwise; None drops one."""
        said = {
            "iss": self.url,
            "aud": "nemo",
            "sub": "ann",
            "iat": int(now) - 5,
            "exp": int(now) + 300,
            **claims,
        }
        said = {name: value for name, value in said.items() if value is not None}
        chosen = algorithm or self.algorithms[kid]
        return jwt.encode(said, key or self.keys[kid], chosen, {"kid": kid, **(headers or {})})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    issuer: Issuer


@contextlib.contextmanager
def running_issuer():
    server = _Server(("127.0.0.1", 0), _Handler)
    server.issuer = Issuer(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        assert isinstance(self.server, _Server)
        issuer = self.server.issuer
        issuer.asked.append(self.path)
        if issuer.broken:
            self.send_error(500)
            return
        usual = {
            "/.well-known/openid-configuration": lambda: json.dumps(issuer.description).encode(),
            "/keys": lambda: json.dumps(issuer.jwks()).encode(),
        }
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("location", f"{issuer.url}/keys")
            self.end_headers()
            return
        body = issuer.answers.get(self.path) or usual[self.path]()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *args):
        pass


def unsigned(claims, **header):
    """A token with `alg: none`."""
    return ".".join([packed({"alg": "none", **header}), packed(claims), ""])


def packed(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
