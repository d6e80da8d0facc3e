"""Many hosts on one machine, for real: a network, a batch system, ssh. Each part runs by hand too.

| module | starts | by hand |
|---|---|---|
| `machines.py` | machines, a network between them and to here | `-m tests.clusters.machines 4` |
| `slurm.py` | a Slurm controller and its nodes in machines | `-m tests.clusters.slurm 4` |
| `sshd.py` | an sshd in each machine, and a client's config | `-m tests.clusters.sshd 2` |
| `offer.py` | what runs in a machine: a worker that offers it as a host | |
| `engines/` | Ray, Kubernetes: without machines | |
"""
