"""Where ranks are: extents, slices, selections, and values by rank."""
