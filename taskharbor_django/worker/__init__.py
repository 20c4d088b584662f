"""The runtime: reserve, run, settle, heartbeat; rows move through drivers and operations only."""
