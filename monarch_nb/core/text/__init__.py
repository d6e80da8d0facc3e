"""Text of many ranks: lines, levels, folding of equal streams, progress bars."""
