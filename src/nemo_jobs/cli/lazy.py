"""Groups whose commands are imported when they are called."""

from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands are `module:attribute` texts, loaded at first use."""

    def __init__(self, *args: Any, lazy: dict[str, str] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self.lazy.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.lazy and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, self.lazy, 1)
            tip = f"; did you mean '{near[0]}'?" if near else f"; there are: {', '.join(self.lazy)}"
            ctx.fail(f"no command '{name}'{tip}")
        return super().resolve_command(ctx, args)
