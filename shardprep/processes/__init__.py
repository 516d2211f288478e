"""Processes that work for this one: a server that forks them, their limits and their end.

They never import the user's program. `worker_process` is used by builds and by the readers.
"""
