"""What every process offers beside actors: transfers, workspaces, metrics, logs."""
