"""A chunk of items to framed record bytes; bad images become rejections."""
