"""The Unix socket: accepts runs and requests of clients, and answers them.

The room owns the listeners, the connections and the memory of requests in flight. Read ingest.py
(accepting and draining), connection.py with buffers.py and window.py (frames and windows),
frame_limits.py and peer.py (refusals), requests.py (what each frame does), then large_bodies.py.
"""
