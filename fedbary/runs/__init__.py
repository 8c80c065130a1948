"""The folder of a run: its place, its content, and how a run resumes from it."""
