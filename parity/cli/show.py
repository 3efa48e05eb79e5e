"""`parity show`: a report's modules as a tree."""

import click


@click.command()
@click.argument("report")
@click.option("--depth", type=click.IntRange(0), help="Levels below the root.")
@click.option("--only", metavar="GLOB", default="*", help="Modules by path, and those around them.")
def show(report: str, depth: int | None, only: str) -> None:
    """Show the modules of a report, with the worst error of each.

    REPORT is a folder or a report.json. R, "local" and the bar are of a module's local error, "with
    inside" of all that it calls, each on the reference's inputs. Exits with 0 if there was
    something to show, whatever the verdict: `parity run` exits with the verdict.

    \b
    Example:
      parity show reports/mine --depth 2
    """
    from parity.report import Report
    from parity.report.terminal import WIDE, output
    from parity.report.tree import show_tree

    show_tree(Report.from_json(report), output(WIDE), depth=depth, only=only)
