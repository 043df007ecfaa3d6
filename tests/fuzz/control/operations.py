"""What the operations of CONTROL take, and the settings of queues, schedules and triggers.

`OPERATIONS` has every operation of the daemon: a test compares the two lists. Words such as
`@item0@` are filled in when a request is sent (steps.py).
"""

from typing import Final

from tests.fuzz.control.values import (
    DEEP,
    DURATIONS,
    PATTERNS,
    SIZES,
    Each,
    Leaf,
    Shape,
    flag,
    long_text,
    needs,
    one_of,
    whole,
)

QUEUES: Final = ("jobs", "sink", "away", "keyed", "claimed", "spare", "other")
"""Those that are there from the beginning, and two that are not."""
UNKNOWN_NAMES: Final = (
    *('"nosuch"', '".hidden"', '"-x"', '"a/b"', '"a:b"', '"QUEUE"', '"q\\u00e9"', '"jobs\\n"'),
    long_text(128, "q"),
    long_text(129, "q"),
)
TIMES: Final = ("0", "-1", "9007199254740991", "9007199254740992", "9007199254740993", "1e15")
DESTINATION: Final = "http://127.0.0.1:9"

queue: Final = Leaf(QUEUES, UNKNOWN_NAMES)
flow: Final = one_of("", "nightly", "daily", odd=(long_text(255, "f"), long_text(200, "\\u00e9")))
name: Final = Leaf(("one", "two", "new-1", "new-2"), UNKNOWN_NAMES)
new: Final = Leaf(("@new@", "@new@", "other", "three"), UNKNOWN_NAMES)
"""Of something that is to be made: nobody has the name, as a rule."""
defined: Final = Leaf(QUEUES[:5], UNKNOWN_NAMES)
"""Queues that can be changed and deleted."""
item: Final = Leaf(
    tuple(f"@item{n}@" for n in range(8)),
    (
        *('"0198c0de-0a00-7000-8000-000000000001-0"', '"@item0@0"', '"@item0@-1"'),
        *('"0198c0de0a0070008000000000000001-4096"', '"@leased0@"', '"-0"'),
    ),
)
write: Final = Leaf(("@write0@", "@write1@"), (long_text(32, "0"), long_text(32, "f"), '"zz"'))
stage: Final = Leaf(tuple(f"{n:032x}" for n in (1, 2, 3)), (long_text(32, "f"),))
cursor: Final = Leaf(
    ("@cursor@",),
    (
        *('""', '"@cursor@A"', '"AAAAAAAAAAAAAAAA"', '"//////////////////////8="', '"f39/f38="'),
        *('"eyJwbGFjZSI6ImRlYWQifQ"', '"WyJjb2xkIiwiIiw5OTk5OTk5OTk5OTk5OTk5OTk5OSwwLCIiXQ"'),
        *('"WyJkZWFkIiwiIiwwLDAsIkFBQUEiXQ"', '"WyJqb3VybmFsIiwiYSBiIiwtMSwwLCIiXQ"'),
        *('"1-9223372036854775808"', '"-1"', '"0-0"', long_text(1001, "A"), f'"1-{"9" * 5000}"'),
    ),
)
payload: Final = one_of("", "text", "x" * 300, odd=('"\\u0000"', long_text(1_100_000, "y")))
payload_b64: Final = one_of("", "AAEC", "eA==", odd=('"="', '"AAA"', '"A A="', '"\\u00e9"'))
moment: Final = Leaf((0, 1_755_000_000_000, 4_102_444_800_000), TIMES)
limit: Final = whole(1, 1000)
reason: Final = one_of("application", "business")
priority: Final = one_of(0, 5, 255, odd=("256", "-1", "5.0", '"normal"', '"high"', '"5"'))


def lasting(*valid: str | float) -> Leaf:
    return Leaf(valid, DURATIONS)


def sized(*valid: str | int) -> Leaf:
    return Leaf(valid, SIZES)


headers: Final = Leaf(
    ({}, {"a": "v"}, {"correlation_id": "v", "X-Token": "v"}),
    (
        *('{"a":1}', '{"":""}', '{"a":"\\n"}', '{"a":"\\u0000"}', '{"schedule":"x"}'),
        *('{"forebay-write":"00"}', '{"forebay-only-if":"x"}', '{"a":"\\ud800"}', '{"a b":"c"}'),
        '{"a":"' + "v" * 5000 + '"}',
        "{" + ",".join(f'"h{n}":"{"v" * 200}"' for n in range(100)) + "}",
    ),
)

TEMPLATES: Final = (
    *('"{{"', '"{{ nope }}"', '"{{ 9**9**9 }}"', "\"{{ 'x' * 999999999 }}\"", '"{{ range(9) }}"'),
    *('"{{ payload.__class__ }}"', '"{% for a in payload %}{{ loop(a) }}{% endfor %}"'),
    *('"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"', '"{{ payload | center(1e9) }}"'),
    '"{{ ' + "(" * 2000 + '"',
    '{"{{ key }}":1}',
    '{"a":{"b":"{{ payload.a | default(omit) }}","c":["{{ omit }}"]}}',
)

# Queues. Counts that make tasks are kept low: what they cost is the operator's choice.

HANDLER: Final = Shape(
    {
        "type": one_of("http"),
        "preset": one_of(
            None,
            "webhook",
            odd=('"salesforce"', '"../x"', '""', '"\\u0000"', "1", '"webhook.yaml"'),
        ),
        "url": one_of(
            f"{DESTINATION}/hook",
            odd=(
                *('"http://"', '"http://127.0.0.1:0/"', '"http://127.0.0.1:65536/"'),
                *('"http://[::1/"', '"http://a:b@127.0.0.1:9/"', '"ftp://127.0.0.1:9/"'),
                *('"http://127.0.0.1:9/\\n"', '"HTTP://127.0.0.1:9"', '"http://127.0.0.1:9#f"'),
                f'"http://{"a" * 5000}:9/"',
            ),
        ),
        "method": one_of("POST", "PUT"),
        "encoding": one_of("ndjson", "json", "raw"),
        "compression": one_of("none", "gzip", "snappy"),
        "headers": headers,
        # Only the configuration may name secrets: any auth is refused.
        "auth": one_of(
            None,
            odd=(
                *('{"type": "bearer"}', '{"type": "bearer", "token": "hush"}', '{"type": "x"}'),
                *('{"type": "bearer", "token": {"env": "PATH"}}', '"basic"', "[]"),
                '{"type": "hmac", "secret": {"file": "/etc/passwd"}}',
            ),
        ),
        "request": needs(
            method=one_of("PATCH", "{{ action }}", odd=('"{{"', '"GET /"', '"CONNECT"')),
            url=one_of("/x/{{ key }}", odd=('"http://other/"', '"//x"', '"{{ key }}"', '"/ "')),
            query=one_of({"a": "{{ id }}"}, odd=('{"a":[1]}', '{"":""}', '{"a":"{{ x }}"}')),
            headers=one_of({"X-A": "{{ flow }}"}, odd=('{"Host":"x"}', '{"a b":1}', '{"A":"\\n"}')),
            item=Leaf(({"a": "{{ payload.a }}"}, "{{ payload }}\n", None), TEMPLATES),
            body=Leaf(({"rows": "{{ items }}"}, "{{ items | join }}", None), TEMPLATES),
        ),
        "batch_items": whole(1, 65_536),
        "batch_bytes": sized("1Ki", "1Mi"),
        "timeout": lasting("10ms", "1s"),
        "answer_bytes_max": sized("1Ki"),
        "item_results": flag,
        "on_refused": one_of("split", "fail"),
        "outage": one_of(None, "status == `401`", odd=('"a["', '"body"', '""', "1")),
        "suspect": one_of("deliver", "fail"),
        "answer": needs(
            "ok",
            items=one_of("@", "results", odd=('"a["', '"no_such()"', '""', "1", '"\\u0000"')),
            match=one_of("position", "id", "index"),
            id=one_of("id", odd=('"`"',)),
            index=one_of("index", odd=('"`"',)),
            ok=one_of("ok", "status == `1`"),
            error=one_of("error", None),
            code=one_of("code", None),
            retry=one_of("retry", None),
            unknown=one_of("fail", "deliver"),
        ),
        "proxy": one_of(
            None,
            "http://127.0.0.1:9",
            "env",
            odd=('"http://a:b@127.0.0.1:9"', '"https://127.0.0.1:9"', '"http://x"', '"http://[:1"'),
        ),
        "proxy_password": one_of(None, odd=('"x"', '{"env": "PATH"}', '{"file": "/etc/passwd"}')),
        "verify_tls": flag,
        "ca_file": one_of(
            None, odd=('"/dev/zero"', '"/dev/null"', '"/nonexistent"', '"/"', '"\\u0000"')
        ),
        "cert_file": one_of(None, odd=('"/dev/zero"', '"/etc/passwd"')),
        "key_file": one_of(None, odd=('"/etc/passwd"',)),
    },
    frozenset({"type"}),
)
PLAIN_HANDLER: Final = needs(
    "type", type=one_of("pull", "null", odd=('"file"', '"python"', '"command"'))
)
HTTP_HANDLER: Final = needs("type", "url", **HANDLER.members)
RETRY_RULE: Final = needs(
    status=Each(one_of("404", "5xx", 500, odd=('"6xx"', '"٤٠٤"', "-1", '"5XX"'))),
    error=one_of("", "timeout", "a+$", odd=PATTERNS),
    then=one_of("retry", "dead"),
    delay=lasting("0s", "10ms"),
    max_retries=whole(0, 65_534),
)
few_tasks: Final = Leaf((0, 1, 2, 4), ("-1", "10001", "true", "1.0", '"1"', "null", "1e9"), True)
QUEUE_SETTINGS: Final = needs(
    description=one_of("", "for tests"),
    external_id=one_of(None, "x-1"),
    is_active=flag,
    handler=PLAIN_HANDLER,
    warm_max_items=whole(1, 10**9),
    warm_max_bytes=sized("64Ki", "1Mi", 65_536),
    full_policy=one_of("block", "drop_newest", "drop_oldest"),
    full_timeout=lasting("0s", "10ms"),
    lease_time=lasting("0s", "100ms", "1h", 2.5),
    settle_durability=one_of("fsync", "lazy"),
    max_retries=whole(0, 65_534),
    unique=one_of("off", "ignore", "reject", "replace"),
    unique_window=lasting("0s", "1s", "365d"),
    backoff=needs(
        enabled=flag,
        initial=lasting("1ms", "10ms"),
        multiplier=one_of(1, 2.0, 100, odd=("0.5", "1e400", "101", '"2"')),
        max=lasting("10ms", "30d"),
        jitter=one_of(0, 0.2, 1, odd=("-0.1", "1.1", "1e-320")),
    ),
    retry_rules=Each(RETRY_RULE, 2),
    breaker=needs(
        enabled=flag,
        threshold=whole(1, 10**6),
        reset_timeout=lasting("10ms", "1d"),
        half_open_probes=whole(1, 1000),
    ),
    workers=needs(
        count=few_tasks,
        adaptive=flag,
        min=few_tasks,
        max=few_tasks,
        max_concurrent_sends=few_tasks,
    ),
    pipeline_split=needs(
        enabled=flag,
        preparer_count=few_tasks,
        sender_count=few_tasks,
        channel_size=whole(1, 65_536),
    ),
    rate_limit=one_of(
        *(0, 10.5, 10**9, "1000 requests/s", "60000/min", "20/s burst 100"),
        odd=(
            *(
                "-1",
                "1e10",
                "1e-320",
                '"10"',
                '"5 requests"',
                '"0/s"',
                '"1/0s"',
                '"9/min burst 10"',
            ),
            *('"1/366d"', '"1e3/s"', '"1//s"', '"1/s burst 0"', long_text(401, "1")),
        ),
    ),
    history=one_of("none", "failures", "all"),
    retention=lasting("1m", "3650d"),
)
HTTP_QUEUE: Final = needs("handler", **{**QUEUE_SETTINGS.members, "handler": HTTP_HANDLER})

# Schedules and triggers.

CRONS: Final = (
    *('"* * * * *"', '"@hourly"', '"0 0 31 2 *"', '"*/0 * * * *"', '"60 * * * *"', '"H * * * *"'),
    *('"0 0 L * *"', '"0 0 * * sun#5"', '"0 0 1-31/99999 * *"', '"* * * * * *"', '"* * * * * * *"'),
    *('"R * * * *"', '"0 0 29 2 1"', '"0 0 * * 8"', '"\\u0663 * * * *"'),
    f'"{",".join(str(n % 60) for n in range(9000))} * * * *"',
    f'"{"*/1" * 3000} * * * *"',
)
ZONES: Final = (
    *('"Mars/Phobos"', '"../../etc/passwd"', '"/etc/localtime"', '"Europe"', '"\\u0000"', '""'),
    *('"tzdata.zi"', '"posixrules"', '"europe/berlin"', '"Europe/Berlin\\n"'),
)
zone: Final = one_of("UTC", "Europe/Berlin", "Pacific/Apia", odd=ZONES)
any_payload: Final = Leaf(
    ("", "text", {"n": 1}, [1, "a"], None, 17, 1.5),
    (*DEEP, "[NaN]", "[1e400]", "1e400"),
)
SCHEDULE_PARTS: Final = {
    "description": one_of("", "for tests"),
    "queue": queue,
    "payload": any_payload,
    "priority": priority,
    "flow": flow,
    "action": flow,
    "headers": headers,
    "missed": one_of("run_once", "run_all", "skip"),
    "enabled": flag,
}
KINDS_OF_TIME: Final = (
    ("every", {"every": lasting("1h", 90, "365d")}),
    ("cron", {"cron": one_of("30 2 * * *", "0 0 1 1 *", odd=CRONS), "zone": zone}),
    (
        "daily",
        {"daily": needs("at", at=one_of("02:30", "23:59:59", odd=('"24:00"', "750")), zone=zone)},
    ),
)
SCHEDULES: Final = tuple(
    needs("queue", kind, **SCHEDULE_PARTS, **parts) for kind, parts in KINDS_OF_TIME
)
SCHEDULE_CHANGE: Final = needs(
    **SCHEDULE_PARTS, **{key: spec for _, parts in KINDS_OF_TIME for key, spec in parts.items()}
)
TIME_TRIGGERS: Final = tuple(
    needs(
        "type",
        "target",
        kind,
        type=one_of("TIME"),
        target=queue,
        **{key: spec for key, spec in SCHEDULE_PARTS.items() if key != "queue"},
        **parts,
    )
    for kind, parts in KINDS_OF_TIME
)
QUEUE_TRIGGER_PARTS: Final = {
    "description": one_of("", "for tests"),
    "queue": one_of("spare", "other", odd=UNKNOWN_NAMES),
    "target": one_of("jobs", "sink", "keyed", odd=UNKNOWN_NAMES),
    "polling_interval": lasting("10s", "1h", 86_400),
    "batch_size": whole(1, 10_000),
    "jobs_max": whole(1, 1000),
    "job_lease": lasting("10s", "30d"),
    "priority": priority,
    "flow": flow,
    "action": flow,
    "headers": headers,
    "enabled": flag,
}
QUEUE_TRIGGER: Final = needs("type", "queue", "target", type=one_of("QUEUE"), **QUEUE_TRIGGER_PARTS)
TRIGGER_CHANGE: Final = needs(type=one_of("QUEUE", "TIME"), **QUEUE_TRIGGER_PARTS)

# The operations.

WHICH_DEAD: Final = needs(
    queue=queue,
    flow=flow,
    action=flow,
    error=one_of("no", "%", "_", "\\", odd=PATTERNS[:4]),
    died_before_ms=moment,
    died_after_ms=moment,
    ids=Each(item),
    failure_reason=reason,
)
WHICH_ITEMS: Final = needs(
    queue=queue,
    state=one_of("SPOOLED", "QUEUED", "COLD_QUEUED", "RUNNING", "DONE", "FAILED", "DELETED"),
    key=one_of("k0", "k1"),
    correlation_id=one_of("v"),
    traceparent=one_of("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "a" * 32),
    error=one_of("no", "%"),
    failure_reason=reason,
    before_ms=moment,
    after_ms=moment,
)
CONSUMER: Final = one_of("nightly", "second", odd=(long_text(100, "c"), long_text(51, "\\u00e9")))
NOTHING: Final = needs()
BY_NAME: Final = needs("name", name=name)
BY_QUEUE: Final = needs("queue", queue=queue)
BY_KEY: Final = needs("queue", "key", queue=one_of("keyed", "jobs"), key=one_of("k9", "k0", "k1"))
BY_KEY_B64: Final = needs("queue", "key_b64", queue=queue, key_b64=payload_b64)
DEAD_STEP: Final = needs(which=WHICH_DEAD, limit=limit, cursor=cursor)

OPERATIONS: Final[dict[str, tuple[Shape, ...]]] = {
    "dead.find": (needs(which=WHICH_DEAD, limit=limit, cursor=cursor, payloads=flag),),
    "dead.count": (needs(which=WHICH_DEAD, stop_at=whole(1, 2**53)),),
    "dead.retry": (DEAD_STEP,),
    "dead.remove": (needs("which", which=Shape(WHICH_DEAD.members, frozenset({"ids"}))), DEAD_STEP),
    "dead.groups": (needs(which=WHICH_DEAD, cursor=cursor),),
    "dead.edit": (
        needs("id", "payload", id=item, payload=payload),
        needs("id", "payload_b64", id=item, payload_b64=payload_b64),
    ),
    "job.start": (needs("what", what=one_of("dead.retry", "dead.remove"), which=WHICH_DEAD),),
    "job.show": (needs("id", id=one_of("@job@")),),
    "job.cancel": (needs("id", id=one_of("@job@")),),
    "job.list": (NOTHING,),
    "queues.show": (BY_QUEUE,),
    "queues.pause": (needs("queue", queue=queue, flow=flow),),
    "queues.resume": (needs("queue", queue=queue, flow=flow),),
    "queues.stats": (BY_QUEUE,),
    "queues.purge": (BY_QUEUE,),
    "queues.try": (
        needs(
            *("queue", "payload"),
            queue=queue,
            payload=payload,
            key=flow,
            flow=flow,
            action=flow,
            send=flag,
        ),
        needs("queue", "payload_b64", queue=queue, payload_b64=payload_b64),
        needs("queue", "from_dead", queue=queue, from_dead=item),
    ),
    "queues.ls": (needs(limit=limit, cursor=cursor),),
    "queues.add": (
        needs("queue", queue=new, settings=QUEUE_SETTINGS),
        needs("queue", "settings", queue=new, settings=QUEUE_SETTINGS),
        needs("queue", "settings", queue=new, settings=HTTP_QUEUE),
    ),
    "queues.set": (
        needs("queue", "settings", queue=defined, settings=QUEUE_SETTINGS),
        needs("queue", "settings", queue=defined, settings=HTTP_QUEUE),
    ),
    "queues.rm": (
        needs("queue", queue=one_of("other", "sink", "spare", "new-1", odd=UNKNOWN_NAMES)),
    ),
    "breakers.ls": (NOTHING,),
    "breakers.set": (
        needs(
            "destination",
            "state",
            destination=one_of(DESTINATION),
            state=one_of("open", "closed", "auto"),
        ),
    ),
    "config.priorities": (NOTHING,),
    "items.find": (needs(which=WHICH_ITEMS, limit=limit, cursor=cursor),),
    "items.show": (needs("id", id=item, payload=flag, whole=flag),),
    "items.delete": (needs("id", id=item),),
    "items.change": (
        needs(
            "id",
            "state",
            id=item,
            state=one_of("QUEUED", "SCHEDULED", "FAILED", "DELETED", "DONE"),
            payload=payload,
            priority=priority,
            due_ms=moment,
            error=one_of("given up", odd=(long_text(501, "e"),)),
        ),
        needs("id", "payload_b64", id=item, payload_b64=payload_b64, due_ms=moment),
        needs("id", "priority", id=item, priority=priority, payload=payload),
    ),
    "keys.show": (BY_KEY, BY_KEY_B64),
    "keys.rm": (BY_KEY, BY_KEY_B64),
    "streams.claim": (
        needs(
            "queue",
            "consumer",
            "after",
            queue=one_of("claimed", "claimed", "spare", odd=UNKNOWN_NAMES),
            consumer=CONSUMER,
            after=whole(0, 2**53),
            items=whole(0, 2**24),
        ),
    ),
    "streams.show": (needs("queue", "consumer", queue=queue, consumer=CONSUMER),),
    "streams.ls": (needs(queue=queue),),
    "streams.rm": (needs("queue", "consumer", queue=queue, consumer=CONSUMER),),
    "stage.seal": (
        needs(
            "write",
            "stage",
            "runs",
            "items",
            write=write,
            stage=stage,
            runs=whole(1, 2**53),
            items=whole(1, 2**53),
        ),
    ),
    "stage.drop": (needs("write", "stage", write=write, stage=stage),),
    "write.publish": (
        needs("write", write=write, stages=Each(stage)),
        needs(
            "write",
            "app",
            "version",
            write=write,
            stages=Each(stage),
            app=one_of("feed", odd=(long_text(256, "a"),)),
            version=whole(0, 2**53),
        ),
    ),
    "write.abort": (needs("write", write=write),),
    "write.list": (needs(all=flag, write=write, limit=limit),),
    "receipt.show": (needs("write", write=write),),
    "cron.list": (NOTHING,),
    "cron.show": (BY_NAME,),
    "cron.next": (needs("name", name=name, count=whole(1, 100)),),
    "cron.add": tuple(needs("name", "settings", name=new, settings=one) for one in SCHEDULES),
    "cron.change": (needs("name", "settings", name=name, settings=SCHEDULE_CHANGE),),
    "cron.remove": (BY_NAME,),
    "cron.run": (BY_NAME,),
    "trigger.list": (NOTHING,),
    "trigger.show": (BY_NAME,),
    "trigger.add": tuple(
        needs("name", "settings", name=new, settings=one) for one in (QUEUE_TRIGGER, *TIME_TRIGGERS)
    ),
    "trigger.change": (
        needs("name", "settings", name=name, settings=TRIGGER_CHANGE),
        needs("name", "settings", name=name, settings=SCHEDULE_CHANGE),
    ),
    "trigger.remove": (BY_NAME,),
    "trigger.run": (BY_NAME,),
    "trigger.pause": (BY_NAME,),
    "trigger.resume": (BY_NAME,),
    "fleet.ls": (NOTHING,),
    "fleet.rm": (needs("daemon", daemon=one_of("0198c0de")),),
}
