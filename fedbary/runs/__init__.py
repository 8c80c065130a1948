"""The folder of a run: where it lies, what it holds, and how a run goes on from it."""
