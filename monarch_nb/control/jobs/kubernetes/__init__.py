"""`KubernetesJob`: hosts that are pods of a cluster."""
