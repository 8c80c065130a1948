"""What a client has in a round that trains a last layer."""

from fedbary.inference import Training, local_method
from fedbary.methods import Local


def local(network, x, y, nll, inference=None):
    """A client of three rounds, in the first."""
    training = Training(3, 16, lr=0.05)
    return Local(network, x, y, nll, inference or local_method("variational"), training, 1.0, 1, 3)
