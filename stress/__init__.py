"""Minutes or hours of everything at once, over real sockets, and then the books must balance.

    tools/run stress [--minutes 5] [--seed N] [--smoke] [--gentle]

A few server processes that are killed, stopped and drained at random; in this process two client nodes whose threads
send and request with random keys, sizes, deadlines and cancellations. Checked while it runs: never two turns of an owner
at once, order per sender and owner, answers that belong to their question. Checked at the end: each operation that was
started has ended exactly once, and every permit, slot, pending entry and owner reservation is back.
"""
