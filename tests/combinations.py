"""Which combinations of its lists of values a test marked `in_turn` tries by day.

A test with several `parametrize` has a combination for each choice of their values. Value t of
every list, taken cyclically, makes combination t; there are as many as the longest list has values.
So each value is tried. By night every combination is.
"""

from collections import defaultdict


def lists_of(item):
    """The values that a test has of each of its lists: a tuple of identities for each."""
    names = (mark.args[0] for mark in item.iter_markers("parametrize"))
    every = (name.replace(" ", "").split(",") if isinstance(name, str) else name for name in names)
    return [tuple(id(item.callspec.params.get(name)) for name in of) for of in every]


def cyclic(items):
    """Return the tests to run: all, but one cycle of the values of those marked `in_turn`."""
    groups = defaultdict(list)
    for item in items:
        if item.get_closest_marker("in_turn"):
            groups[item.nodeid.partition("[")[0]].append((item, lists_of(item)))
    left_out = set()
    for group in groups.values():
        columns = zip(*(values for _, values in group), strict=True)
        orders = [{value: n for n, value in enumerate(dict.fromkeys(of))} for of in columns]
        turns = range(max(map(len, orders)))
        kept = {tuple(turn % len(order) for order in orders) for turn in turns}
        for item, values in group:
            if tuple(order[v] for order, v in zip(orders, values, strict=True)) not in kept:
                left_out.add(item.nodeid)
    return [item for item in items if item.nodeid not in left_out]
