"""The answer to one call as it comes in: its head, and its body in pieces."""

import httptools


class Answer:
    """Fed with what the connection receives. `wrong` says why it can't be understood."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.begun = self.has_head = self.complete = self.keep = False
        self.wrong = ""
        self.on_body = self.pieces.append  # called for each chunk: a long log has a million
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Bytes of the answer."""
        self.begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.wrong = "it changed to another protocol"
        except httptools.HttpParserError as error:
            self.wrong = self.wrong or f"it sent something that isn't an answer: {error}"

    def end(self) -> None:
        """The connection ended in good order: so does a body that doesn't say how long it is."""
        if self.has_head and not ("content-length" in self.headers or "transfer-encoding" in self.headers):
            self.complete = True

    # What the parser calls

    def on_message_begin(self) -> None:
        if self.complete:
            self.wrong = "it sent two answers to one call"
            self.pieces.clear()  # whose bytes they are can't be told
            self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.has_head = self.status >= 200

    def on_message_complete(self) -> None:
        if self.status < 200:  # an interim answer
            self.headers.clear()
        elif not self.wrong:
            self.complete, self.keep = True, self._parser.should_keep_alive()
