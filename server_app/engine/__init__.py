"""Both apps in one process: the server's run against the clients', for a run or for many."""
