"""Tasks that the tests enqueue and run."""
