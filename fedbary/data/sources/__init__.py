"""Libraries that data come from, a file each: ``dataset=FILE:PLACE:PART`` is read by it.

A file has a ``FORM``, which errors show, and one or more of these functions. Each takes a
`DataSource` of `fedbary.data.forms` and a `Reading` of `fedbary.data.readers`:

``images``
    returns the four arrays of a data set, see `fedbary.data.images._dataset.from_arrays`;
``image_columns``
    likewise of images in a column, with their labels in the column that the reading names;
``table``
    returns a `Frame` of `fedbary.data.frame`, for classification and regression;
``local``
    returns a source's local path, if its place may be a path.

A new library needs no other registration.
"""
