"""The table of a run's coefficients, from the factors that its server holds.

PVI's full Laplace sites are factors as they are, and so are Newton's quadratics. Its masked sums
are one factor of all sites, and so are those with random intercepts. Sums of
products are those of least squares under a flat prior: P_k = A_k/s² with the residual variance s² =
RSS/(n − p). Sums of LDA and Ridge are of a linear model of each class's probability.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.special import ndtri

from fedbary.aggregation.covariance import unpacked
from fedbary.aggregation.sums import select_prefix
from fedbary.errors import SettingError
from fedbary.methods import method_of
from fedbary.methods._expanded import OWN, RESIDUAL, SLOPE
from fedbary.methods._method import Method, Tensors, by_client, whose
from fedbary.methods._sums import SumsMethod, sites_of
from fedbary.methods.newton import (
    GRADIENT,
    HESSIAN,
    POINT,
    SITE,
    STDS,
    Newton,
    mode_of,
    seen_from,
)
from fedbary.methods.pvi import PVI
from fedbary.runs.location import RECORD
from fedbary.runs.record import read_record
from fedbary.runs.resume import rounds_before, sound_checkpoint
from fedbary.runs.schema import CLIENTS, REFUSED, ROUND, SETTLED, UNANSWERED, UNASKED, unshared
from fedbary.settings.config import Settings
from fedbary.tasks import INTERCEPT, Contrasts, are_levels
from fedbary.tasks._sandwich import CLUSTERS, KEPT, PRODUCTS, ROWS, SITES
from fedbary.texts import listed
from fedbary.trained.coefficients import (
    COLLINEAR,
    DIFFER,
    Coefficients,
    Factors,
    Sandwich,
    Site,
    counted,
    ends,
    tabulated,
)
from fedbary.trained.started_from import METHOD_STATE

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedbary.trained.run import Trained

ROUNDING = 1e-6
"""A site's variance over that of all sites that is rounding: all of its targets are equal."""

SUMS_ALONE = (
    "No tau, Q, own estimates, nor estimates without a site: masked sums and random intercepts "
    "have no factors of sites"
)
"""The line on what a run of Newton may not tell."""

FEW_EVENTS = 10
"""Events a coefficient below which a line warns."""

FEW_SITES = 5
"""Sites below which random intercepts are warned of (Gelman and Hill 2007, section 11.5)."""

BEGIN = "method=PVI inference=laplace covariance=full model=linear prior_std=10 holdout=0 rounds=6"
"""Settings of a run that has a table of coefficients."""


def coefficients(trained: Trained, level: float, anyway: bool) -> Coefficients:
    """Return the table of coefficients of a run; see `Trained.coefficients`."""
    if not 0 < level < 1:
        raise SettingError("level", level, "above 0 and below 1")
    settings, folder = trained.settings, trained.folder
    method = method_of(settings)
    contrasts = trained.task.contrasts(trained.signature, trained.facts)
    _require_right(settings, method)
    earlier = [made["rounds"] for made in rounds_before(folder)]
    again = settings.model_copy(update={"resume": "last"})
    checkpoint = sound_checkpoint(folder, again, earlier)
    state, model = select_prefix(METHOD_STATE, checkpoint.strategy), checkpoint.arrays
    _require_linear(contrasts, model)
    notes = [*contrasts.notes, *_unused_rows(trained), *_filled(trained, anyway)]
    notes += trained.task.said_last(trained.told, trained.facts)
    if isinstance(method, SumsMethod):
        factors = of_sums(method, state, contrasts)
        words = f"least squares, t with {float(factors.degrees):.0f} degrees of freedom"
        if factors.contrasts.link != contrasts.link:
            notes.append(
                "Estimates are differences of probabilities. The intervals take one variance for "
                "all rows, which classes do not have; for odds ratios: " + BEGIN
            )
        seen = {name: site.rows for name, site in factors.sites.items()}
    else:
        assert isinstance(method, Newton | PVI)
        words = f"mode and curvature, prior N(0, {method.prior_std:g}²)"
        seen = _seen(trained.rounds)
        if isinstance(method, Newton):
            factors = of_newton(method, state, contrasts, seen)
            notes += spread_of_intercepts(method, state, level, len(seen))
            notes += [] if factors.sites else [SUMS_ALONE]
            notes += far_answers(method, state)
            if alike := contrasts.of_sites:
                left = np.min(factors.degrees)
                words += f"; t with {left:.0f} degrees of freedom: {listed(alike)}"
        else:
            factors = of_laplace(method, model, state, contrasts, seen)
        notes += _unsettled(trained, factors, state, anyway)
        notes += _absent(trained.rounds)
        notes += _left_out(trained)
        factors = with_sandwich(trained, factors, seen, anyway)
        words += f"; {factors.sandwich.words}" if factors.sandwich else ""
    factors = replace(factors, unshared=frozenset(unshared(trained.rounds)))
    table = tabulated(factors, level)
    title = f"{settings.method}, {sum(seen.values()):.0f} rows of {len(seen)} sites: {words}"
    notes += _cautions(factors, table, level)
    return Coefficients(table, title, tuple(notes), factors, level)


def _seen(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the rows of each site by its name, by some rounds' lines."""
    return {c["site"]: float(c["num-examples"]) for r in rounds for c in r.get(CLIENTS, [])}


def basis(contrasts: Contrasts) -> tuple[np.ndarray, np.ndarray]:
    """Return Q, (weights, p), and Rᵀ, (p, p), of J = Rᵀ Qᵀ."""
    q, r = np.linalg.qr(contrasts.matrix.numpy().T)
    return q, r.T


def of_laplace(
    method: PVI, model: Tensors, state: Tensors, contrasts: Contrasts, seen: Mapping[str, float]
) -> Factors:
    """Return the factors of full Laplace sites.

    Parameters
    ----------
    method, model, state
        The run's method, its global model and its state at the server.
    contrasts
        Meaning of the coefficients.
    seen
        Rows of each site by its name.
    """
    expanded, (q, turn) = method.expanded, basis(contrasts)
    structure, mean = expanded.structure(model), expanded.mean(model)
    mode, alone = q.T @ mean.flatten().numpy(), by_client(OWN, state)

    def projected(held: Tensors) -> tuple[np.ndarray, np.ndarray]:
        matrix = unpacked(held["precision"], mean.numel()).numpy()
        return q.T @ matrix @ q, q.T @ held[SLOPE].numpy()

    sites: dict[str, Site] = {}
    for client, held in expanded.sites(state, structure):
        (precision, slope), name = projected(held), whose(client)
        if name in sites:
            precision, slope = precision + sites[name].precision, slope + sites[name].slope
        sites[name] = Site(seen.get(name, np.nan), precision, slope)
        if client in alone:
            own, at_zero = projected(alone[client])
            sites[name] = replace(sites[name], alone=(own, at_zero + own @ mode))
    return Factors(contrasts, turn, mode, method.prior_std**-2, sites, contrasts.degrees)


def of_newton(
    method: Newton, state: Tensors, contrasts: Contrasts, seen: Mapping[str, float]
) -> Factors:
    """Return the factors of Newton's sites, or of their sums; the mode is a step further.

    The standard deviation of random intercepts is integrated over, as a normal in its logarithm.
    Terms that are the same in all rows of a site have t with K − q degrees of freedom, of K sites
    and q such terms, the intercept among them; others vary within sites, and have a normal.
    `seen` are the rows of each site by its name.

    References: Schluchter and Elashoff 1990; Li and Redden 2015, for few sites of two classes.
    """
    q, turn = basis(contrasts)
    layer, precision, prior = len(q), method.precision(state).numpy(), method.prior_std**-2
    across, corner = precision[:layer, layer:], precision[layer:, layer:]
    marginal = precision[:layer, :layer] - across @ np.linalg.solve(corner, across.T)
    summed = q.T @ marginal @ q - prior * np.eye(layer)
    mode = q.T @ mode_of(state).numpy()[:layer]
    degrees: float | np.ndarray = contrasts.degrees
    if alike := contrasts.of_sites:
        left = max(1, len(seen) - len(alike))
        degrees = np.where(np.isin(contrasts.terms, alike), left, degrees)
    if method.masked or int(state[STDS]):
        return Factors(contrasts, turn, mode, prior, {}, degrees, summed)
    sites: dict[str, Site] = {}
    for client, held in by_client(SITE, state).items():
        moved = seen_from(held, mode_of(state))
        bent = unpacked(moved[HESSIAN], layer).numpy()
        slope = q.T @ moved[GRADIENT].numpy()
        sites[client] = Site(seen.get(client, np.nan), q.T @ bent @ q, slope)
    return Factors(contrasts, turn, mode, prior, sites, degrees)


def with_sandwich(
    trained: Trained, factors: Factors, seen: Mapping[str, float], anyway: bool
) -> Factors:
    """Return factors with what the sites told of their scores, if the settings ask for it.

    For n rows, k parameters and G clusters B is multiplied by n/(n − k) for rows (HC1), and by
    G/(G − 1) (n − 1)/(n − k) for groups and sites, whose t has G − 1 degrees of freedom.
    """
    how = dict(trained.settings).get("errors", "model")
    if how == "model":
        return factors
    q, _ = basis(factors.contrasts)
    held = select_prefix(KEPT, trained.told)
    sites = int(held.get(SITES, torch.zeros(1)))
    now = bool(held) and int(trained.told[ROUND]) == trained.rounds[-1][ROUND]
    if not now or sites < len(seen):
        if anyway:
            return factors
        allowed = "products of scores of all sites; --anyway (anyway=True) takes the model's errors"
        said = f"{how}, and {sites if now else 0} of {len(seen)} sites told them at the mode"
        raise SettingError("errors", said, allowed)
    own = 0 if trained.task.predicts else len(seen) * len(factors.contrasts.outcomes)
    rows, clusters = float(held[ROWS]), float(held[CLUSTERS])
    left, by_rows = rows - len(factors.mode) - own, how == "robust" and clusters == rows
    if min(left, clusters - 1) < 1:
        allowed = f"more than {rows - left:.0f} rows, and two clusters"
        raise SettingError("errors", f"{how}, and {rows:.0f} rows in {clusters:.0f}", allowed)
    if by_rows:
        degrees = factors.contrasts.degrees
        scale, words = rows / left, "robust standard errors (HC1)"
    else:
        scale, degrees = clusters / (clusters - 1) * (rows - 1) / left, clusters - 1
        called = "sites, too small where these are few" if how == "site" else "groups"
        words = f"standard errors by {clusters:.0f} {called}, t with {degrees:.0f} degrees"
    products = q.T @ unpacked(held[PRODUCTS], len(q)).numpy() @ q
    return replace(factors, sandwich=Sandwich(scale * products, degrees, words))


def spread_of_intercepts(method: Newton, state: Tensors, level: float, sites: int) -> Iterator[str]:
    """Yield a line on the standard deviation of random intercepts, and one if sites are few."""
    if int(state[STDS]):
        std = float(np.sqrt(np.linalg.inv(method.precision(state).numpy())[-1, -1]))
        log = float(mode_of(state)[-1])
        low, tau, high = np.exp(log + np.array([-1, 0, 1]) * ndtri((1 + level) / 2) * std)
        yield (
            f"Sites' intercepts: standard deviation {tau:.3g}, {100 * level:g} % interval "
            f"{low:.3g} to {high:.3g}. The intercept of the table is their mean"
        )
        if sites < FEW_SITES:
            yield (
                f"Few sites: {sites} tell little of how intercepts differ, and the prior "
                f"intercept_std={method.intercept_std:g} decides much of it. intercepts=site "
                "assumes nothing of it"
            )


def far_answers(method: Newton, state: Tensors) -> Iterator[str]:
    """Yield a line on how far from the mode v the older answers were made, √⟨d, Λ d⟩."""
    precision, far = method.precision(state), list[str]()
    for client, site in by_client(SITE, state).items():
        if not site[POINT].equal(state[POINT]):
            move = mode_of(state) - site[POINT]
            far.append(f"{client} {float((move @ precision @ move).clamp_min(0).sqrt()):.2g}")
    if far:
        yield f"Older answers, and their distance from the mode in standard errors: {listed(far)}"


def of_sums(method: SumsMethod, state: Tensors, contrasts: Contrasts) -> Factors:
    """Return the factors of least squares from a method's state of sums.

    Raises
    ------
    SettingError
        If there are no more rows than terms.
    """
    if classes := contrasts.link != "identity":
        names = tuple(name.rpartition(" against ")[0] for name in contrasts.outcomes)
        shares = torch.eye(len(names) + 1, dtype=torch.float64)[1:]
        contrasts = replace(contrasts, outcomes=names, outputs=shares, link="identity")
    terms, outputs = len(contrasts.terms), contrasts.outputs.numpy()
    grams, rows = dict[str, np.ndarray](), dict[str, float]()
    q, r = np.linalg.qr(contrasts.columns.numpy().T)
    turn = np.zeros((len(q) + outputs.shape[1], terms + len(outputs)))
    turn[: len(q), :terms], turn[len(q) :, terms:] = q, outputs.T
    for client, (count, means) in sites_of(state).items():
        name = whose(client)
        gram = turn.T @ method.gram(means).numpy() @ turn
        grams[name] = grams.get(name, 0.0) + count * gram
        rows[name] = rows.get(name, 0.0) + count
    if (degrees := sum(rows.values()) - terms) <= 0:
        raise SettingError("run", f"{sum(rows.values()):.0f} rows", f"more than {terms} terms")
    total = np.sum([*grams.values()], axis=0)
    mode, left, _ = _least_squares(total, terms)
    if classes:
        events = torch.from_numpy(np.linalg.solve(r, total[:terms, terms:]).T).round()
        levels = are_levels(contrasts.units)
        contrasts = replace(contrasts, events=torch.where(levels, events, events[:, -1:]))
    var = left / degrees
    sites = {}
    for name, gram in grams.items():
        _, own, rank = _least_squares(gram, terms)
        more = rows[name] - rank
        ratio = own / max(more, 1) / var
        spread = np.sqrt(np.where((more > 0) & (ratio > ROUNDING), ratio, np.nan))
        precision = np.kron(np.diag(1 / var), gram[:terms, :terms])
        slope = (gram[:terms, :terms] @ mode - gram[:terms, terms:]) / var
        sites[name] = Site(rows[name], precision, slope.T.flatten(), np.repeat(spread, terms))
    whole = np.kron(np.eye(len(outputs)), r.T)
    return Factors(contrasts, whole, mode.T.flatten(), 0.0, sites, degrees)


def _least_squares(gram: np.ndarray, terms: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the solutions (terms, targets), each target's squares left over, and the rank."""
    x, xy = gram[:terms, :terms], gram[:terms, terms:]
    inverse = np.linalg.pinv(x, rcond=COLLINEAR, hermitian=True)
    found = inverse @ xy
    left = gram.diagonal()[terms:] - (xy * found).sum(0)
    return (
        found,
        left.clip(1e-12 * gram.diagonal()[terms:]),
        int(np.linalg.matrix_rank(inverse, hermitian=True)),
    )


def _require_right(settings: Settings, method: Method) -> None:
    """Raise a SettingError unless the method's factors are those of the rows' likelihood."""
    words = {"kl_weight": 1.0, "class_weights": "none"}
    if isinstance(method, SumsMethod):
        words = {"max_norm": 0.0, "epsilon": 0.0, "max_weight_ratio": "none"}
    elif not isinstance(method, Newton | PVI):
        allowed = (
            "ConjugateGaussian, Ridge, LDA, Newton, or PVI with full sites. Other methods hold "
        )
        allowed += f"no curvature, or one whose standard deviations are wrong: {BEGIN}"
        raise SettingError("method", settings.method, allowed)
    elif isinstance(method, PVI) and method.covariance != "full":
        given = "of a mean field" if method.covariance == "none" else method.covariance
        allowed = "full: the standard deviations of the others are wrong where columns are "
        raise SettingError("covariance", given, f"{allowed}correlated; begin with {BEGIN}")
    for name, wanted in words.items():
        given = {**dict(settings), **vars(method)}.get(name, wanted)
        if given != wanted:
            allowed = f"{wanted}: with another the factors are not those of the rows"
            raise SettingError(name, given, allowed)


def _require_linear(contrasts: Contrasts, model: Tensors) -> None:
    """Raise a SettingError unless the model's only matrix is the layer of the coefficients."""
    matrices = [weight for weight in model.values() if weight.ndim > 1]
    outputs, width = contrasts.outputs.shape[1], contrasts.columns.shape[1]
    width -= INTERCEPT in contrasts.terms  # else each site has an intercept of its own
    if [tuple(weight.shape) for weight in matrices] != [(outputs, width)]:
        raise SettingError("model", "a network with hidden layers", f"linear; begin with {BEGIN}")


def _unused_rows(trained: Trained) -> Iterator[str]:
    """Yield a line on rows of the data that are not used."""
    settings, data = trained.settings, trained.data
    apart = dict(settings).get("test_dataset", "none")
    used = 0 if data is None else int(data.trained.sum())  # 0: sites have tables of their own
    if data is not None and apart == "none" and 0 < used < len(data.rows):
        share = 100 * used / len(data.rows)
        yield (
            f"Rows: {used} of the data's {len(data.rows)} are used ({share:.0f} %); the others "
            "test. holdout=0 uses what sites hold out. Sites with tables of their own test on none"
        )
    elif settings.holdout:
        yield f"Rows: each site holds out {settings.holdout:.0%} of its own; holdout=0 uses all"


def _filled(trained: Trained, anyway: bool) -> Iterator[str]:
    """Yield a line on cells that are filled in; raise a SettingError unless it goes on anyway."""
    missing = getattr(trained.signature, "missing", "refuse")
    if missing not in ("mean", "median", "indicator"):
        return
    why = "95 % intervals then hold the truth in as few as 45 %"
    if not anyway:
        allowed = f"refuse: cells are filled in, and {why}; leave rows with empty cells out, or go "
        raise SettingError("missing", missing, f"{allowed}on with --anyway (anyway=True)")
    yield f"Cells are filled in (missing={missing}): {why}"


def _unsettled(trained: Trained, factors: Factors, state: Tensors, anyway: bool) -> Iterator[str]:
    """Yield a line on rounds that have not settled; raise a SettingError unless it goes on."""
    rounds = trained.settings.rounds
    on = f"fedbary resume {trained.folder} rounds={rounds + 3}"
    last = next((line for line in reversed(trained.rounds) if CLIENTS in line), {CLIENTS: ()})
    heard = {client["site"] for client in last[CLIENTS]}
    if RESIDUAL in state:
        matrix, step = factors.contrasts.matrix.numpy(), state[RESIDUAL].numpy()
        step = np.abs(matrix @ step[: matrix.shape[1]] / factors.stds)
        names = factors.contrasts.terms * len(factors.contrasts.outcomes)
        said = f"a last step of {step.max():.2g} standard deviations ({names[int(step.argmax())]})"
        settled = step.max() <= SETTLED
    else:
        said, settled = "no round since a site was taken out", False
    if not settled and not anyway:
        allowed = f"at most {SETTLED:g}: {on} goes on; or --anyway (anyway=True)"
        raise SettingError("run", said, allowed)
    if not settled:
        yield f"Rounds have not settled: {said}; {on} goes on"
    if trained.settings.start_from != "none":
        yield "Rows of earlier runs count as the modes of those runs saw them"
    if silent := sorted((factors.sites.keys() | _seen(trained.rounds).keys()) - heard):
        yield f"Not heard in the last round: {listed(silent)}; their factors are older"


def _absent(rounds: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines on sites that never answered, and on replies that the last round refused."""
    known = {name for line in rounds for key in (UNANSWERED, UNASKED) for name in line.get(key, [])}
    if absent := sorted(known - _seen(rounds).keys()):
        yield f"Never heard, so that their rows do not count: {listed(absent)}"
    yield from (f"Refused in the last round: {why}" for why in rounds[-1].get(REFUSED, ()))


def _left_out(trained: Trained) -> Iterator[str]:
    """Yield a line on nodes whose data did not fit, if fewer sites have answered than are meant."""
    file = trained.folder / RECORD
    if len(_seen(trained.rounds)) >= trained.settings.clients or not file.exists():
        return
    events, _ = read_record(file)
    admitted = {event["node"] for event in events if "site" in event}
    left = {event["node"]: event["reason"] for event in events if event["event"] == "left out"}
    if said := [f"node {n} ({why})" for n, why in left.items() if n not in admitted]:
        yield f"Left out, so that their rows do not count: {'; '.join(said)}"


def _cautions(factors: Factors, table: DataFrame, level: float) -> Iterator[str]:
    """Yield lines on how sites differ, on what the prior holds, on few events."""
    (low, high), held = (f"HK {end}" for end in ends(level)), factors.contrasts
    several = len(held.outcomes) > 1
    names = [
        f"{o}: {t}" if several else t for o, t in zip(table["outcome"], table["term"], strict=True)
    ]
    table = table.assign(name=names)
    if factors.sites and len(differ := table[table["p differ"] < DIFFER]):
        shown = [
            f"{r['name']} {r[low]:.4g} to {r[high]:.4g}" if r[low] == r[low] else
            f"{r['name']} (none, as a site's own estimate is too far from the common one)"
            for _, r in differ.iterrows()
        ]  # fmt: skip
        yield (
            f"Sites differ (p differ below {DIFFER}). Take the Hartung-Knapp interval for "
            f"{'; '.join(shown)}"
        )
    p, most = factors.score()
    if p < DIFFER:
        enough = ". A level of each site's own may be enough to explain it"
        yield (
            f"Sites do not have one set of coefficients (score test, p = {p:.2g}; most of it: "
            f"{most}). Take the Hartung-Knapp intervals of all terms"
            f"{enough if INTERCEPT in held.terms else ''}"
        )
    several = len(factors.sites) > 1
    if private := sorted(factors.unshared & factors.sites.keys()):
        yield f"Own estimates are not shown of {listed(private)}, which do not share them"
        several = len(factors.sites) > 2
    if far := [n for n in factors.sites if several and table[f"without {n}"].isna().all()]:
        yield (
            f"Not known from here: the estimates without {listed(far)}. They lie too far off; "
            "fedbary forget, and further rounds, find them"
        )
    if len(loose := table[table["flag"] != ""]):
        yield (
            f"Held by the prior, not by the rows: {listed(loose['name'])}. Some rows may be told "
            "apart wholly (separation)"
        )
    events, rows = (t.nan_to_num(-torch.inf).amax(1) for t in (held.events, held.rows))
    kinds = [*events.tolist(), float(rows.max() - events.sum())]
    fewest = min((count for count in kinds if count >= 0), default=np.inf)
    if fewest < FEW_EVENTS * len(held.terms):
        yield (
            f"Few events: {counted(fewest)} of one kind for {len(held.terms)} "
            f"coefficients; {FEW_EVENTS} for each are wanted"
        )
