"""Scripts on a rank, as torchrun would start them."""
