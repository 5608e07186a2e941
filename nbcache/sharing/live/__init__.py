"""The shared level: kernels that publish and find artifacts in a store while they run."""
