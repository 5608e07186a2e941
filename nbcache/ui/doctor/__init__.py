"""Whether all that nbcache needs is in order here, and what to do where it is not.

No kernel imports torch for it, and nothing is changed; but in a terminal the local store is opened, which
makes its folder.
"""

from nbcache.ui.doctor.checkup import in_kernel, in_terminal

__all__ = ["in_kernel", "in_terminal"]
