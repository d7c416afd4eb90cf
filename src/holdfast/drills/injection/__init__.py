"""What runs in the training process during a drill: it puts the faults in where torch passes by, and notes when."""
