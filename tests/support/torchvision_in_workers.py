"""Imported by the server of worker processes, so that they have torchvision as tests do."""

from tests.support.torchvision import import_torchvision

import_torchvision()
