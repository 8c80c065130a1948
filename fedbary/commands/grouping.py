"""The command that groups a run's clients: clusters."""

from __future__ import annotations

from typing import Annotated

import typer

from fedbary.commands.reading import aligned
from fedbary.commands.use import Run


def clusters(
    run: Run,
    count: Annotated[int, typer.Option("--count", min=1, help="Number of clusters.")] = 2,
    rule: Annotated[
        str,
        typer.Option(
            help="WB: W2 distances; RKLB: KL(centre ‖ client); FKLB: KL(client ‖ centre)."
        ),
    ] = "WB",
) -> None:
    """Group a simulated run's clients by the models that they keep.

    RUN is the folder of a run with projection=WB or RKLB, or of a method whose clients keep a whole
    model (pFedBayes, pFedVem). The clusters are those of k-means, with barycentres weighted by
    examples as centres. The last line says how much of the spread about one barycentre they
    explain. 0 % is nothing; more clusters explain more.

    Example: `fedbary clusters runs/RUN --count 3`.
    """
    from fedbary.gaussian import Posterior
    from fedbary.methods.shared.clusters import clustered
    from fedbary.runs.checkpoints import load_checkpoint
    from fedbary.runs.location import as_written, read_settings
    from fedbary.runs.metrics_file import read_rounds
    from fedbary.runs.schema import CLIENTS
    from fedbary.trained.kept import kept_models

    with as_written(run):
        read_settings(run)
        models = kept_models(run, load_checkpoint(run, "last").arrays)
        lines = read_rounds(run)
        held = {client["site"]: client for line in lines for client in line.get(CLIENTS, [])}
        examples = [int(held[site]["num-examples"]) for site in models]
        posteriors = [Posterior.from_state_dict(model) for model in models.values()]
    found = clustered(rule, posteriors, examples, count)
    (spread, *_) = clustered(rule, posteriors, examples, 1).costs
    rows = sorted(zip(found.members, models, examples, strict=True), key=lambda row: row[0])
    columns = zip(*[(member + 1, site, size) for member, site, size in rows], strict=True)
    table = dict(zip(("cluster", "client", "examples"), map(list, columns), strict=True))
    print("\n".join(aligned(table)))
    explained = 1 - found.costs[-1] / spread if spread else 0.0
    print(f"{count} clusters by {rule} explain {100 * explained:.1f} % of the clients' spread")
