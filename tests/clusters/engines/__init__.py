"""Engines that start hosts, for real on this machine: Ray and Kubernetes."""
