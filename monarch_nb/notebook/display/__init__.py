"""How values, grids and meshes look as text and HTML."""
