"""Datasets that earlier versions built: every later version reads them."""
