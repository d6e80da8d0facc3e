"""The Monarch kernel: an ipykernel whose notebook is the controller of a mesh.

`python -m monarch_kernel -f FILE`.
"""
