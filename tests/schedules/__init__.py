"""Scripted schedules: scenarios whose every interleaving can be chosen, replayed and listed (issue 3)."""
