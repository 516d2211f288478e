"""The engine on a Ray cluster; the only importer of Ray."""
