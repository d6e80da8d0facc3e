"""What crosses process boundaries: frames, pickling, boards, manifests."""
