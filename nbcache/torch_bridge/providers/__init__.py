"""One module for each type of artifact: it records artifacts, and restores them before torch's lookup."""
