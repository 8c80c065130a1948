"""Training data: images, tables, texts, their partition among clients, and sites' own data."""
