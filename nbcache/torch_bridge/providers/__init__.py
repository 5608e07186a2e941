"""A file for each type of artifact: how it is recorded, and made present before torch looks it up."""
