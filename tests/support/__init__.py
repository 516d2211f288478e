"""Builders of archives, images and stores; oracles; and the faults that tests put in."""
