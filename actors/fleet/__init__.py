"""What daemons share besides rows: owners, mailboxes, breakers, decisions about writes.

The package owns what this daemon has entered into a shared warm queue. Read fleet.py (the door),
writes.py with write_follower.py, breakers.py, then shared_warm.py with owner.py and mailbox.py.
"""
