"""The programming model, the same in every process: actors, endpoints, futures, ports, meshes."""
