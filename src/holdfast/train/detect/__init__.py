"""Object detection: RT-DETRv2 and D-FINE in our loop, YOLO in its own."""
