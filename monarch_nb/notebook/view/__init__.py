"""The live view of meshes: what a page is told, asks and shows."""
