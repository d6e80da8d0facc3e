"""The targets: `bytes -> bool`, whose docstring begins with the invariant.

A target tells whether the bytes were accepted. It lets every exception out that is not the refusal
which the parser promises; that is a finding.
"""
