"""Spark writes: stages that tasks seal, and that their driver publishes together or drops.

The cold store decides, the journal carries out. The package owns nothing. Read writes.py (the door:
what clients ask), follower.py (decisions that were made elsewhere or in an earlier life, and
expiry), then parts.py (receipts of writes that several daemons have a part of).
"""
