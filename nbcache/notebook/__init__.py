"""What a notebook shows and where it lives."""
