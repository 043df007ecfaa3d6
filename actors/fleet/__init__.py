"""What daemons share besides rows: owners, mailboxes, breakers, decisions, the list of daemons.

The package owns what this daemon has entered into a shared warm queue. Read fleet.py (the door),
writes.py with write_follower.py, breakers.py, members.py, then shared_warm.py with owner.py and
mailbox.py.
"""
