"""Artifacts by type: how each is recorded, and made present before torch looks it up."""
