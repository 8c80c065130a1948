"""The `fedbary` command: words in, a run, a table or a page out."""
