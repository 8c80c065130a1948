"""Starting simulations and deployments as programs; the `fedbary` command."""
