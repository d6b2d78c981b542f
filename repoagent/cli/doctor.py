"""``repoagent doctor``: what of this machine the server can use, and what to do about each gap."""

import json

import click

from repoagent.cli.doctor_checks import examine

__all__ = ["doctor"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(as_json: bool) -> None:
    """Report what the server can use on this machine, and how to close each gap.

    A gap is not a fault: a server without a GPU serves everything but TensorRT plans. The exit status is 0.
    """
    findings = examine()
    if as_json:
        click.echo(json.dumps([finding.as_dict() for finding in findings], indent=2))
        return
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        mark = "gap" if finding.remedy else "ok "
        click.echo(f"{mark}  {finding.subject:<{width}}  {finding.found}")
        if finding.remedy:
            click.echo(f"     {'':<{width}}  -> {finding.remedy}")
