"""Record bytes to numpy arrays: images, crops, targets, boxes, masks."""
