"""`python -m zlink_nogil`: the command line."""

from zlink_nogil.hosting.cli import main

main()
