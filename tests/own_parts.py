"""A rule, a method and an attack of one's own, as `rule=own_parts:…` and such name them."""

from dataclasses import dataclass, replace

from fedbary.aggregation import RULES, CoordinateRule, Rule
from fedbary.attacks import Attack
from fedbary.methods import Method
from fedbary.methods.fedprox import FedProx
from fedbary.parts.parameters import Checked, Positive


@dataclass(frozen=True)
class Parameters(Checked):
    """What the rule depends on.

    Parameters
    ----------
    exponent : float
        The power of variances that is averaged.
    """

    exponent: Positive = 1.0


def rule(own):
    """Return the rule that averages a power of variances."""
    return Rule(
        "PowerMean",
        forward=lambda mean, log_var: (mean, (own.exponent * log_var).exp()),
        inverse=lambda mean, powered: (mean, powered.log() / own.exponent),
    )


RULE = rule(Parameters())
ALONE = replace(RULES["WB"], name="Alone")
MIDRANGE = CoordinateRule("Midrange", lambda stack, hostile: (stack.amin(0) + stack.amax(0)) / 2)
NAMESAKE = replace(ALONE, name="WB")


@dataclass(frozen=True)
class Near(FedProx):
    """FedProx whose pull is multiplied.

    Parameters
    ----------
    times : float
        The factor of the pull.
    """

    times: Positive = 1.0

    def fit(self, local, received, kept):
        """Train as FedProx does with the multiplied pull."""
        return FedProx(self.mu * self.times).fit(local, received, kept)


@dataclass(frozen=True)
class Turned(Attack):
    """Multiplies the update.

    Parameters
    ----------
    times : float
        The negative of the factor.
    """

    times: Positive = 1.0

    def sent(self, received, fitted):
        """Send the update against its sign."""
        means = {name: new for name, new in fitted.items() if not name.endswith("log_var")}
        moved = {m: received[m] - self.times * (new - received[m]) for m, new in means.items()}
        return fitted | moved


class Untyped(Method):
    """A method that is no dataclass."""
