"""Engines: the writers of a build's shards, on this machine or on a Ray cluster.

An engine gets shards and yields what is done of them; who owns a shard writes and commits it. The
bytes do not depend on the engine.
"""
