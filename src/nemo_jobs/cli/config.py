"""`nemo config`: the command's own settings, and a check of a service's configuration."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from nemo_jobs.cli.config_file import SECRET, Content, context_named, item, load, shown, write
from nemo_jobs.cli.options import columns_option, global_options, name_argument, nonempty, pass_session
from nemo_jobs.cli.render import show_list, show_object
from nemo_jobs.cli.session import CommandError, Session
from nemo_jobs.cli.settings import DEFAULT_URL, config_path

_LONGEST_TOKEN = 64 << 10
#: Backends that the service has.
_BACKENDS = ("subprocess", "docker")


@click.group()
def config() -> None:
    """Settings of this command, and checking those of a service."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
@global_options()
@pass_session
def check(session: Session, file: Path) -> None:
    """Check a service's configuration file: exit 0 if a service could start with it, else 2."""
    from nemo_jobs.config import ConfigError, load_settings
    from nemo_jobs.domain.profiles import resolve_profiles

    try:
        loaded = load_settings(file, session.environ)
    except ConfigError as error:
        count = len(error.problems)
        _warn(session, error.warnings)
        session.note("\n".join(error.problems))
        raise CommandError(f"{file}: {count} problem{'s' * (count != 1)}", 2) from error
    _warn(session, loaded.warnings)
    without, withal = (
        [
            f"{profile.provider}/{profile.profile}"
            for profile in resolve_profiles(loaded.settings, docker=docker, available=_BACKENDS).listed()
        ]
        for docker in (False, True)
    )
    text = f"{file}: fine; profiles without Docker: {', '.join(without) or 'none'}"
    more = ", ".join(name for name in withal if name not in without)
    session.data(f"{text}; with a Docker engine also {more}" if more else text)


def _warn(session: Session, warnings: list[str]) -> None:
    for warning in warnings:
        session.note(f"warning: {warning}")


@config.command("set")
@click.option("--workspace", callback=nonempty, metavar="NAME", help="Workspace of the context.")
@click.option(
    "--token-file",
    metavar="FILE",
    help="Keep the token in this file's first line for the context's user; '-' reads standard input.",
)
@click.option("--no-auth", is_flag=True, help="Forget the token of the context's user.")
@click.option("--certificate-authority", metavar="FILE", help="Certificates to trust, for https.")
@click.option("--truncate", type=click.BOOL, metavar="true|false", help="Cut long values in tables.")
@click.option("--color-output", type=click.BOOL, metavar="true|false", help="Use colours on terminals.")
@click.option("--activate", is_flag=True, help="Make the context the current one.")
@global_options()
@pass_session
def set_values(
    session: Session,
    workspace: str | None,
    token_file: str | None,
    no_auth: bool,
    certificate_authority: str | None,
    truncate: bool | None,
    color_output: bool | None,
    activate: bool,
) -> None:
    """Write values into a context of the settings file: address and workspace, the token, and with
    --output-format, --timestamp-format, --truncate and --color-output its preferences."""
    flags = session.flags
    preferences = {
        "output_format": flags.output_format,
        "timestamp_format": flags.timestamp_format,
        "truncate": False if flags.no_truncate else truncate,
        "color_output": False if flags.no_color else color_output,
    }
    change = Change(
        _checked_address(flags.base_url),
        workspace,
        certificate_authority,
        {key: value for key, value in preferences.items() if value is not None},
        _token(token_file) if token_file is not None else None,
        no_auth,
    )
    if token_file is not None and no_auth:
        raise click.UsageError("--token-file and --no-auth can't go together")
    if not any((*change[:5], no_auth, activate)):
        raise click.UsageError("nothing to set; give --base-url, --workspace, --token-file or --activate")
    path, content = load(session)
    name = flags.context or content.get("current_context") or "default"
    change.apply(content, name)
    if activate or not content.get("current_context"):
        content["current_context"] = name
    write(path, content)
    session.note(f"wrote context '{name}' to {path}")


class Change(NamedTuple):
    """What to write into a context; None leaves a value as it is."""

    base_url: str | None
    workspace: str | None
    ca_file: str | None
    preferences: dict[str, Any]
    token: str | None
    no_auth: bool

    def apply(self, content: Content, name: str) -> None:
        """Change the context, and the cluster and user that it names."""
        context = item(content, "contexts", name)
        cluster = item(content, "clusters", context.setdefault("cluster", name))
        if self.base_url:
            cluster["base_url"] = self.base_url
        cluster.setdefault("base_url", DEFAULT_URL)
        if self.ca_file:
            cluster["certificate_authority"] = self.ca_file
        user = item(content, "users", context.setdefault("user", name if self.token else "anonymous"))
        if self.token and user["name"] == "anonymous":
            # Others share this one: a token is for this context alone.
            context["user"] = name
            user = item(content, "users", name)
        if self.token or self.no_auth:
            for key in SECRET:
                user.pop(key, None)
            user["type"] = "no-auth"
        if self.token:
            user |= {"type": "token", "token": self.token}
        user.setdefault("type", "no-auth")
        if self.workspace:
            context["workspace"] = self.workspace
        if self.preferences:
            context["preferences"] = {**(context.get("preferences") or {}), **self.preferences}


def _checked_address(url: str | None) -> str | None:
    if url:
        from nemo_jobs.client import BadAddress
        from nemo_jobs.client.connection import parse_address

        try:
            parse_address(url)
        except BadAddress as error:
            raise CommandError(str(error), 2) from error
    return url


def _token(file: str) -> str:
    """The token in the first line of a file. It is no argument: everyone can read those."""
    if file == "-" and sys.stdin is None:
        raise click.UsageError("standard input is closed")
    if file == "-" and sys.stdin.isatty():
        return str(click.prompt("token", hide_input=True, err=True)).strip()
    try:
        with click.open_file(file, encoding="utf-8") as stream:
            token: str = stream.readline(_LONGEST_TOKEN).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file}: can't be read: {error}") from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise click.UsageError(f"{file}: the first line is no token")
    return token


@config.command("view")
@global_options()
@pass_session
def view(session: Session) -> None:
    """Show the settings file, without its tokens."""
    show_object(session, shown(load(session)[1]))


@config.command("get-contexts")
@columns_option
@global_options(context_letter=False)
@pass_session
def get_contexts(session: Session, columns: str) -> None:
    """List the contexts of the settings file."""
    _, content = load(session)
    addresses = {found.get("name"): found.get("base_url") for found in content.get("clusters") or ()}
    rows = [
        {
            "name": found.get("name"),
            "current": found.get("name") == content.get("current_context"),
            "base_url": addresses.get(found.get("cluster")),
            "workspace": found.get("workspace") or "default",
            "user": found.get("user"),
        }
        for found in content.get("contexts") or ()
    ]
    keys = ("name", "current", "base_url", "workspace", "user")
    show_list(session, rows, columns=columns, default=keys, keys=keys)


@config.command("use-context")
@name_argument()
@global_options()
@pass_session
def use_context(session: Session, name: str) -> None:
    """Make another context the current one."""
    path, content = load(session)
    context_named(content, name, path)
    content["current_context"] = name
    write(path, content)
    session.note(f"the current context is '{name}'")


@config.command("delete-context")
@name_argument()
@global_options()
@pass_session
def delete_context(session: Session, name: str) -> None:
    """Remove a context, and the cluster and user that no other context names."""
    path, content = load(session)
    gone = context_named(content, name, path)
    content["contexts"] = [found for found in content["contexts"] if found is not gone]
    for kind, key in (("clusters", "cluster"), ("users", "user")):
        if gone.get(key) and all(found.get(key) != gone[key] for found in content["contexts"]):
            content[kind] = [found for found in content.get(kind) or () if found.get("name") != gone[key]]
    if content.get("current_context") == name:
        del content["current_context"]
        session.note("there is no current context now; choose one with: nemo config use-context NAME")
    write(path, content)
    session.note(f"removed context '{name}' from {path}")


@config.command()
@global_options()
@pass_session
def show(session: Session) -> None:
    """Show the settings in force, from flags, environment and file together."""
    chosen = session.settings
    show_object(
        session,
        {
            "base_url": chosen.base_url,
            "workspace": chosen.workspace,
            "context": chosen.context,
            "token": "set" if chosen.token else None,
            "output_format": chosen.output_format,
            "timestamp_format": chosen.timestamp_format,
            "truncate": chosen.truncate,
            "color_output": chosen.colour,
            "file": chosen.file or config_path(session.environ),
            "file_exists": chosen.file is not None,
        },
    )
