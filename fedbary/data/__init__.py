"""Training data: images, tables, texts, their deal to clients, and sites with data of their own."""
