"""Engines: the runners of a build's chunks, on this machine or on a Ray cluster.

An engine gets tasks in plan order and hands back their results in the same order; the bytes do
not depend on it.
"""
