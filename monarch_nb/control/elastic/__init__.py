"""Elastic loops, as the controller decides on them and brings their ranks back."""
