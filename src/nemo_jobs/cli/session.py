"""What one run of the command knows: flags, settings, the client, and where output goes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from nemo_jobs.cli import settings as settings_module
from nemo_jobs.cli.text import clean_block

if TYPE_CHECKING:
    from nemo_jobs.client import JobsClient, Retry

_UNSAFE_IN_JSON = "[\x7f-\x9f\ud800-\udfff]"


class CommandError(Exception):
    """Ends the command with a message and an exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class Done(Exception):
    """Ends the command early and well."""


class OutputLost(Exception):
    """Standard output can't take more. Empty when its reader has simply gone."""


class Terminated(BaseException):
    """SIGTERM arrived."""


class Flags:
    """The global options as given; None and 0 mean not given."""

    def __init__(self) -> None:
        self.base_url: str | None = None
        self.context: str | None = None
        self.output_format: str | None = None
        self.timestamp_format: str | None = None
        self.no_truncate = False
        self.no_color = False
        self.verbose = 0


class Session:
    """Made once in `main`, passed to every command."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.flags = Flags()
        self.environ = os.environ if environ is None else environ
        self.workspace: str | None = None
        self.hint = ""
        #: What `-f code` prints behind the call: lines of Python that go on with its `answer`.
        self.code_after: tuple[str, ...] = ()
        self._settings: settings_module.Settings | None = None
        self._shared: JobsClient | None = None
        self._clients: list[JobsClient] = []

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        for client in self._clients:
            client.close()

    @property
    def settings(self) -> settings_module.Settings:
        """Flag, environment, file and default, resolved at first use."""
        if self._settings is None:
            try:
                self._settings = settings_module.resolve(self.flags, self.environ)
            except settings_module.BadSettings as error:
                raise CommandError(str(error), 2) from error
        return self._settings

    @property
    def prints_code(self) -> bool:
        """Whether calls are shown as Python instead of being made."""
        return (self.flags.output_format or self.settings.output_format) == "code"

    def client(self, retry: Retry | None = None) -> JobsClient:
        """The client for this run; with `retry` a new one with its own connection."""
        from nemo_jobs.client import BadAddress, JobsClient, Retry, Transport

        if retry is None and self._shared is not None:
            return self._shared
        chosen = self.settings
        try:
            transport = Transport(
                chosen.base_url,
                token=chosen.token,
                ca_file=chosen.ca_file,
                retry=retry or Retry(refused=False, warn=self.note),
                trace=self.note if self.flags.verbose else None,
                heads=self.flags.verbose > 1,
            )
        except BadAddress as error:
            raise CommandError(str(error), 2) from error
        client = JobsClient(workspace=self.workspace or chosen.workspace, transport=transport)
        self._clients.append(client)
        if retry is None:
            self._shared = client
        return client

    def ask(self, method: str, *args: Any, **fields: Any) -> Any:
        """Call a method of the client, or print the Python for it with `-f code`."""
        fields = {name: value for name, value in fields.items() if value is not None}
        if self.prints_code:
            self.data(self._code(method, args, fields))
            raise Done
        call: Callable[..., Any] = getattr(self.client(), method)
        return call(*args, **fields)

    def data(self, text: str) -> None:
        """A line (or several) of what was asked for, to stdout."""
        try:
            stdout().write(text + "\n")
        except OSError as error:
            raise _lost(error) from error

    def note(self, text: str) -> None:
        """A remark for people, to stderr."""
        flush()
        if sys.stderr is not None:
            sys.stderr.write(clean_block(text) + "\n")
            sys.stderr.flush()

    def json(self, value: Any, *, compact: bool = False) -> None:
        """A JSON document to stdout."""
        self.data(json_text(value, compact=compact))

    def name_hint(self, name: str) -> str:
        """How a job is addressed in the commands that hints suggest."""
        workspace = self.workspace or self.settings.workspace
        return name if workspace == "default" else f"{name} --workspace {workspace}"

    def _code(self, method: str, args: tuple[Any, ...], fields: dict[str, Any]) -> str:
        chosen = self.settings
        made = [ascii(chosen.base_url), f"workspace={self.workspace or chosen.workspace!a}"]
        if chosen.token:  # never the token itself: code is kept and shown around
            made.append("token=os.environ['NHX_ACCESS_TOKEN']")
        if chosen.ca_file:
            made.append(f"ca_file={chosen.ca_file!a}")
        words = [ascii(value) for value in args] + [f"{key}={value!a}" for key, value in fields.items()]
        lines = [
            *(("import os", "") if chosen.token else ()),
            *("from nemo_jobs.client import JobsClient", ""),
            f"client = JobsClient({', '.join(made)})",
            f"answer = client.{method}({', '.join(words)})",
            *self.code_after,
        ]
        return "\n".join(lines)


def code_of_wait(*, logs: bool, timeout: float | None = None) -> tuple[str, ...]:
    """Python that waits for the end of the job `answer`, and prints its log if that is wanted."""
    shown = ("for line in client.follow_logs(answer['name']):", "    print(line['message'])") if logs else ()
    return (*shown, f"answer = client.wait(answer['name'], timeout={timeout!r})")


def json_text(value: Any, *, compact: bool = False) -> str:
    """JSON in UTF-8 where stdout is, else in ASCII; never with a character that acts on a
    terminal, and losing none."""
    plain = is_utf8(stdout())
    if compact:
        text = json.dumps(value, ensure_ascii=not plain, separators=(",", ":"))
    else:
        text = json.dumps(value, ensure_ascii=not plain, indent=2)
    if text.isascii() and "\x7f" not in text:
        return text
    return re.sub(_UNSAFE_IN_JSON, lambda found: f"\\u{ord(found[0]):04x}", text)


def stdout() -> TextIO:
    """Standard output; a sink when the caller closed it."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    return sys.stdout


def flush() -> None:
    """Hand over what was printed so far. Raises `OutputLost`."""
    try:
        stdout().flush()
    except OSError as error:
        raise _lost(error) from error


def _lost(error: OSError) -> OutputLost:
    return OutputLost("" if isinstance(error, BrokenPipeError) else error.strerror or str(error))


def can_ask() -> bool:
    """Whether a person is there to answer a question."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def is_utf8(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf8sig")
