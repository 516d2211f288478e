"""Encode a chunk of items to framed records; bad images become rejections."""
