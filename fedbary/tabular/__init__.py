"""Classification of tables: who holds which rows, networks, loss, predictions, scores."""
