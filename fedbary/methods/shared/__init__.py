"""What many methods import: the class of methods, SGD from point weights, steps of a server."""
