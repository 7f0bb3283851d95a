"""Measurements, next to what one would use instead; nothing here asserts on time.

    tools/run bench scheduler [--runs 3] [--rows CELL ...] [--workers 2] [--scale 1.0] [--json FILE]

One module or package per subject. A subject has cells; a cell runs ours and the baselines in turn (A B C A B C ...), checks
in every run that the job was done, and gives ratios of the medians: above 1 ours is faster. A cell whose job was not done
is void and has no figures.
"""
