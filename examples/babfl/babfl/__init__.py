"""BA-BFL: barycentres of the clients' posteriors."""
