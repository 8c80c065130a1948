"""A look at the sites' tables before any model: what sites tell, what it shows, a page."""
