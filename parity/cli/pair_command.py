"""Commands that take a pair, and the options that the pair has of its own."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from parity.cli.options import PAIR, find_pair, registered
from parity.cli.output import with_output
from parity.core.exceptions import InputError, printable

if TYPE_CHECKING:
    from parity.core.pair import Option, Pair

HELP = ["-h", "--help"]
CHOSEN, OWN = f"{__name__}.chosen", f"{__name__}.own"


def pair_command(
    out: str, *options: Callable[[Any], Any]
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a command that takes a pair and these options, as `with_output` does."""

    def decorate(function: Callable[..., None]) -> click.Command:
        command = click.command(cls=PairCommand, context_settings={"help_option_names": HELP})
        return command(with_output(out, PAIR, *options)(function))

    return decorate


class PairCommand(click.Command):
    """A command that takes a pair, and after its name the pair's own options.

    These are known once the pair is loaded, with all that it imports: help without a name needs
    none of it. The function gets the pair as `chosen`, and their values as `options`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Load the pair, then parse with its options."""
        with suppress(*([Exception] if ctx.resilient_parsing else [])):  # the shell completes
            name = self._name(args)
            if name is not None:
                ctx.meta[CHOSEN] = find_pair(name)
                ctx.meta[OWN] = self._own(ctx.meta[CHOSEN])
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Hand the pair on, and its own options apart from the command's."""
        own = {param.name: ctx.params.pop(param.name) for param in ctx.meta[OWN]}
        ctx.params |= {"chosen": ctx.meta[CHOSEN], "options": own}
        return super().invoke(ctx)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the pair's options too, once it is known."""
        return [*ctx.meta.get(OWN, ()), *super().get_params(ctx)]

    def _name(self, args: list[str]) -> str | None:
        """Return the first word that is no option and no value of one that the command has."""
        context = click.Context(
            self, ignore_unknown_options=True, resilient_parsing=True, help_option_names=HELP
        )
        found, rest, _ = self.make_parser(context).parse_args(list(args))
        words = [word for word in (found.get("pair"), *rest) if isinstance(word, str)]
        if words and words[0].startswith("-"):
            raise click.UsageError(
                f"{words[0]}: options of a pair come after its name; name one first, of"
                f" {', '.join(sorted(registered())) or 'yours'} or as module:attribute"
            )
        return words[0] if words else None

    def _own(self, pair: "Pair") -> list[click.Parameter]:
        taken = {param.name for param in self.params}
        for option in pair.options:
            if option.name in taken:
                raise InputError(
                    f"pair {pair.name}: option {option.name!r} is one of `parity {self.name}`"
                    " itself; rename it"
                )
        defaults = pair.selftest if self.name == "selftest" else {}
        return [_option(one, defaults.get(one.name, one.default)) for one in pair.options]


def _option(option: "Option", default: Any) -> click.Option:
    """Return an option whose value the pair parses."""

    def checked(context: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, str):
                option.parse(value)  # the pair does it again, from the text
        except ValueError as error:
            raise click.BadParameter(printable(error), context, param) from error
        return value

    return click.Option(
        [f"--{option.name.replace('_', '-')}", option.name],
        type=click.UNPROCESSED,
        callback=checked,
        default=default,
        show_default=default is not None,
        metavar=option.metavar,
        help=option.help,
    )
