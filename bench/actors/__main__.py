"""One run in this process: `python -m bench.actors JOB PEER ACTORS ROUNDS WORKERS` prints its figures as JSON."""

from __future__ import annotations

import gc
import json
import sys

from bench.actors.run import measured

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    print(json.dumps(vars(measured(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])))))
