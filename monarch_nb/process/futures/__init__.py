"""What is waited for: futures, tasks, calls in flight."""
