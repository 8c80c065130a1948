"""Parts by name: their files, their parameters, and parts of a user's own code."""
