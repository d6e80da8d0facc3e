"""Meshes that outlive the process which drives them, and how another one takes over."""
