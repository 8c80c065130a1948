"""What is learnt from: images, tables, who holds what, sites with data of their own."""
