"""Engines that start hosts: Ray for real; Kubernetes for real where it was built, else a stand-in.

| module | starts |
|---|---|
| `ray_cluster.py` | a Ray cluster of two nodes, as `ray start` does |
| `control_plane.py` | Kubernetes' own programs, from the folder that MONARCH_NB_KUBERNETES names |
| `stand_in.py` | what answers in their place: recorded words, a scheduler of two nodes |
| `planes.py` | one of the two, with nodes and a namespace |
| `kubelet.py` | the commands of pods, as processes of this machine |
"""
