"""Warm in Valkey or Redis: a queue that many daemons share, and the limits that they keep together.

server.py     the connection: addresses, deadlines, and translation of the driver's errors
entries.py    slices as text that sorts, and that a script can cut
lua_*.py      the scripts: every move is one of them
news.py       who waits, and how it is woken
shared_queue.py   one step on one queue, its epoch, and the server's time
warm.py       `ValkeyWarm`, the port
shared_limits.py  rates and breakers of the fleet
"""
