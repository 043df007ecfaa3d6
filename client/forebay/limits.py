"""Every limit of the run and wire formats, in one place, with the relations between them.

The daemon may be configured to accept less than this, never more. Sizes are in bytes unless
the name says otherwise.
"""

RUN_ITEMS_MAX = 4096
QUEUE_BYTES_MAX = 128
FLOW_BYTES_MAX = 255
ACTION_BYTES_MAX = 255
HEADER_NAME_BYTES_MAX = 255
HEADER_VALUE_BYTES_MAX = 4096
HEADERS_BYTES_MAX = 16 * 1024
KEY_BYTES_MAX = 200
PRIORITY_MAX = 255
ATTEMPT_MAX = 0xFFFF
TIME_MS_MAX = 2**53 - 1
"""Times stay exact in JSON and JavaScript."""

RUN_HEAD_FIXED_BYTES = 60
RUN_HEAD_BYTES_MAX = (
    RUN_HEAD_FIXED_BYTES + QUEUE_BYTES_MAX + FLOW_BYTES_MAX + ACTION_BYTES_MAX + HEADERS_BYTES_MAX
)
RUN_RAW_BYTES_MAX = 64 * 1024 * 1024
"""A run's body before compression: the hard limit of the format."""
RUN_RAW_BYTES_DEFAULT = 1024 * 1024
"""Where producers cut a run unless told otherwise."""
RUN_ITEMS_DEFAULT = 1000
RUN_COMPRESS_BYTES_MIN = 512
"""Shorter bodies are left as they are: Snappy takes 10 bytes off an item of 300 bytes of JSON, and
2.4 of the 9.4 µs in which its run is made (25 µs more where the caches are cold)."""
SNAPPY_RATIO_MAX = 22
"""A Snappy copy of 3 bytes stands for at most 64: a body that claims more is not worth a buffer."""

FRAME_HEAD_BYTES = 12
FRAME_SLACK_BYTES = 64 * 1024
"""What a frame may hold beside a run's body: the run's head, or a small JSON document."""
FRAME_BODY_BYTES_MAX = RUN_RAW_BYTES_MAX + RUN_RAW_BYTES_MAX // 6 + FRAME_SLACK_BYTES
"""Snappy grows what it cannot shrink by at most a sixth."""
REPORT_BYTES_MAX = 16 * 1024 * 1024
ERROR_TEXT_MAX = 2000
"""Characters of an ERROR's text: it may quote what it is about."""
HELLO_BYTES_MAX = 4096
PING_BYTES_MAX = 64

WRITE_ID_BYTES = 16
STAGE_HEAD_BYTES = 2 * WRITE_ID_BYTES
"""Write id and stage id, before the run in a STAGE."""
APP_BYTES_MAX = 255
VERSION_MAX = 2**53
FETCH_BYTES_MAX = 4096
FETCH_ROWS_MAX = 4096
FETCH_RUN_BYTES_MAX = 16 * 1024 * 1024
"""The most bytes of runs that a FETCH may ask for."""
FETCH_RUN_BYTES_DEFAULT = 4 * 1024 * 1024
FETCHED_ABOUT_BYTES_MAX = 1024 * 1024
"""Of history it says how each row ended, and with which errors."""
CLAIM_ITEMS_MAX = 16 * 1024 * 1024
CLAIM_ITEMS_DEFAULT = 100_000

LEASE_BYTES_MAX = 4096
LEASE_ITEMS_MAX = 16 * RUN_ITEMS_MAX
LEASE_ITEMS_DEFAULT = 100
LEASE_RUN_BYTES_MAX = 16 * 1024 * 1024
"""The most bytes of runs that a LEASE may ask for."""
LEASE_RUN_BYTES_DEFAULT = 1024 * 1024
LEASE_MS_MAX = 7 * 24 * 3600 * 1000
LEASE_WAIT_MS_MAX = 3600 * 1000
CONSUMER_BYTES_MAX = 100
LEASES_MAX = 4096
"""Leases in a LEASED, SETTLE or EXTEND."""
LEASE_HEAD_BYTES = 24
ITEM_BITS_BYTES_MAX = RUN_ITEMS_MAX // 8
SETTLE_PARTS_MAX = RUN_ITEMS_MAX
"""Of all leases in a SETTLE together: to read them takes the daemon about 30 ms."""
SETTLE_TEXT_BYTES_MAX = 16 * 1024
"""A client cuts errors and results to this length; the daemon keeps no more of a result."""
SETTLE_TEXTS_BYTES_MAX = 4 * 1024 * 1024
"""A client cuts the texts of one lease to shares of this: a lease is settled by one frame."""
SETTLE_BYTES_MAX = 8 * 1024 * 1024
EXTEND_BYTES_MAX = 64 * 1024
CONTROL_BYTES_MAX = 8 * 1024 * 1024
"""A payload of 4 MiB in base64, and more than 100,000 ids."""
ANSWER_BYTES_MAX = (
    FRAME_BODY_BYTES_MAX + FETCHED_ABOUT_BYTES_MAX + 2 + LEASE_HEAD_BYTES + ITEM_BITS_BYTES_MAX
)
"""The longest body that a daemon sends: a LEASED or FETCHED with the largest run there is."""

PRIORITY_NORMAL = 5

assert RUN_ITEMS_MAX <= 0xFFFF
assert HEADERS_BYTES_MAX <= 0xFFFF
assert HEADER_VALUE_BYTES_MAX <= 0xFFFF
assert RUN_HEAD_BYTES_MAX + STAGE_HEAD_BYTES <= FRAME_SLACK_BYTES
assert RUN_HEAD_BYTES_MAX + 4 <= FRAME_SLACK_BYTES
assert RUN_COMPRESS_BYTES_MIN <= RUN_RAW_BYTES_DEFAULT <= RUN_RAW_BYTES_MAX
assert FRAME_BODY_BYTES_MAX < 2**31
assert ANSWER_BYTES_MAX < 2**31
assert REPORT_BYTES_MAX <= ANSWER_BYTES_MAX
assert LEASE_RUN_BYTES_DEFAULT <= LEASE_RUN_BYTES_MAX <= FRAME_BODY_BYTES_MAX
assert LEASE_ITEMS_DEFAULT <= LEASE_ITEMS_MAX
assert LEASES_MAX <= 0xFFFF
assert FETCH_ROWS_MAX <= 0xFFFF
assert FETCH_RUN_BYTES_DEFAULT <= FETCH_RUN_BYTES_MAX
# Many small rows, each with bits, take less room than the largest run.
assert FETCH_ROWS_MAX * (LEASE_HEAD_BYTES + ITEM_BITS_BYTES_MAX) <= RUN_RAW_BYTES_MAX // 6
assert FETCH_RUN_BYTES_MAX <= RUN_RAW_BYTES_MAX
assert LEASES_MAX <= SETTLE_PARTS_MAX
# A lease can be settled in one frame, even with another error for each of its items.
assert (
    1 + QUEUE_BYTES_MAX + 2 + 10
    + RUN_ITEMS_MAX * (10 + ITEM_BITS_BYTES_MAX) + SETTLE_TEXTS_BYTES_MAX
    <= SETTLE_BYTES_MAX
)  # fmt: skip
assert 1 + QUEUE_BYTES_MAX + 4 + 2 + 8 * LEASES_MAX <= EXTEND_BYTES_MAX
assert max(HELLO_BYTES_MAX, PING_BYTES_MAX) <= FRAME_SLACK_BYTES
