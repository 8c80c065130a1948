"""Parts by name: found in their files, what may be told them, and those of your own code."""
