"""A small shop that uses each feature of TaskHarbor once."""
