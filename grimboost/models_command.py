"""`grimboost models`: aliases, what is cached, where and how large. Plain text where it is no terminal."""

from pathlib import Path

import click

from grimboost.model_cache import cache_root
from grimboost.model_references import aliases, cached_models


def show_models() -> None:
    """Print the list."""
    click.echo("aliases")
    for alias, description in aliases().items():
        click.echo(f"  {alias}  {description}")
    click.echo(f"\ncached in {cache_root()}")
    found = cached_models()
    for model in found:
        state = "" if model.complete else "  (incomplete, made again at the next use)"
        click.echo(f"  {model.name}  {_size(model.bytes)}  {Path(model.directory).name}{state}")
    if not found:
        click.echo("  nothing yet; the first 'grimboost generate' fetches the default target")


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
