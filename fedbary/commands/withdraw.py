"""The command for a site that withdraws: forget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedbary.commands.reading import tell
from fedbary.commands.use import OwnCode, Run


def forget(
    run: Run,
    site: Annotated[str, typer.Argument(metavar="SITE")],
    output: Annotated[
        Path | None, typer.Option(help="Folder to write.", show_default="RUN-without-SITE")
    ] = None,
    own_code: OwnCode = False,
) -> None:
    """Take a site out of a run of LDA, Ridge or ConjugateGaussian, or of PVI covariance=full.

    RUN is the folder of a run that has ended. SITE is the name of a site, as in its log. The new
    folder has the model of a run without the site; of PVI it is the posterior without the site's
    factor. RUN stays as it is.

    Examples: `fedbary forget runs/RUN north`; `fedbary forget runs/RUN "partition 3" --output
    runs/WITHOUT`.
    """
    from fedbary.trained.forgetting import forget as without
    from fedbary.trained.forgetting import place_beside

    place = output or place_beside(run, site)
    for line in without(run, site, place, own_code):
        tell(line)
    print(f"Results: {place}")
