"""The Unix socket: accepts runs and requests of clients, and answers them.

The package owns the listeners, the connections and the memory of requests in flight. Read ingest.py
(the door: accepting and draining), connection.py with buffers.py and window.py (frames, their
limits and windows), peer.py (who may connect), requests.py (what each frame does), then
large_bodies.py.
"""
