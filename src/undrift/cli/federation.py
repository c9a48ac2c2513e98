"""``undrift federation``: from a simulation to sites that keep their data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undrift.errors import ConfigError

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


def _installed() -> None:
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise ConfigError("a federation needs Flower: pip install 'undrift[flower]'") from None


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the set-up.")],
    sites: Annotated[str, typer.Option(help="The sites' names, joined by commas.")],
    address: Annotated[str, typer.Option(help="The server's name or IP address, as sites reach it.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The server's port.", min=1, max=65535)] = 8000,
) -> None:
    """Write a folder for the server and one for each site, with certificates and keys.

    Example: undrift federation init hospitals --sites north,south,east --address fl.example.org
    """
    _installed()
    from undrift.federation.setup import init as write

    write(folder, [name.strip() for name in sites.split(",") if name.strip()], address, port)
    typer.echo((folder / "README.md").read_text(), nl=False)


@app.command()
def serve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The server's folder.")],
    host: Annotated[str, typer.Option(help="The network interface to listen at.")] = "0.0.0.0",
) -> None:
    """Wait for sites and for runs (Flower's SuperLink), until Ctrl-C.

    Example: undrift federation serve server
    """
    _installed()
    from undrift.federation.serve import serve as serving

    serving(folder, typer.echo, host)


@app.command()
def join(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="This site's folder.")],
    data: Annotated[Path, typer.Option(metavar="FILE.npz", help="This site's samples: arrays x and y.")],
) -> None:
    """Take part with this site's data (Flower's SuperNode), until Ctrl-C.

    Example: undrift federation join north --data mine.npz
    """
    _installed()
    from undrift.federation.join import join as joining

    joining(folder, data, typer.echo)
