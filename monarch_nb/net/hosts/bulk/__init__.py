"""Large values between hosts: in pieces, and in memory that is lent on both ends."""
