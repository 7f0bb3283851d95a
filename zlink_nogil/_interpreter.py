"""Refuses an interpreter that cannot run the package, in one sentence; warns once on a build with the GIL.

Written for any Python 3, since it is what an old one gets to see.
"""

import sys
import sysconfig
import warnings

if sys.implementation.name != "cpython" or sys.version_info < (3, 13):
    raise ImportError(
        "zlink_nogil needs CPython 3.13 or newer, best its free-threaded build python3.13t; this is "
        + sys.implementation.name
        + " "
        + sys.version.split()[0]
        + "."
    )

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

if not FREE_THREADED:
    warnings.warn(
        "this Python has the GIL: zlink_nogil works, but its threads run one at a time", RuntimeWarning, stacklevel=3
    )
