"""Helpers of many methods: the class of methods, SGD from point weights, steps of a server."""
