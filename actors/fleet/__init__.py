"""What daemons share besides rows: breakers, rates, who is there.

The package owns nothing that must survive. Read fleet.py (the door), breakers.py, then members.py.
"""
