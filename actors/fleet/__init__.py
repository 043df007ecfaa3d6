"""What daemons share besides rows: decisions about writes, breakers, who is there.

The package owns nothing that must survive. Read fleet.py (the door), writes.py with
write_follower.py, breakers.py, then members.py.
"""
