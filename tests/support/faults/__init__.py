"""Faults that are put into a request: an error at its n-th call or line of Python, a system call that is denied."""
