"""The benchmark of stores: reading and writing them, without a kernel that compiles."""
