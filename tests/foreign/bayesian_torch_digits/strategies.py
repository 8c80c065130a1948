"""This project's own module of that name: how it splits its data."""


def share(x, partition, partitions):
    """Every so-manieth example, the first partition twice as many."""
    shares = list(range(partitions)) + [0]
    return x[[i for i in range(len(x)) if shares[i % len(shares)] == partition]]
