"""Programs that checks start in processes of their own: what can crash, hang or take all memory does it there."""
