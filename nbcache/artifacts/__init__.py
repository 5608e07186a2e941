"""What an artifact is, as bytes, where it fits, who made it, and where it is stored."""
