"""Formats of files, a file each: a path that ends in ``.FILE`` is read by it.

The functions are those of `fedbary.data.sources`, except ``local``.
"""
