"""The templates of `request`: what they make of items, and what they refuse."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.config import templates
from actors.config.rendering import BadTemplate, Rows, Unrenderable, as_text, as_url_part
from actors.config.template_bodies import FreeBody, ItemBody, ListBody, compile_body
from actors.config.template_sandbox import compile_program
from actors.config.templates import ITEM_NAMES, Program, compile_maker, compile_text, compile_value

CONTACT = {
    "email": "ann@example.org",
    "age": 41,
    "score": 1.5,
    "vip": True,
    "tags": ["a", "b"],
    "address": {"city": "Ulm"},
    "items": "not a method",
    "nothing": None,
}


def rows(*payloads: Any, **columns: Any) -> Rows:
    count = len(payloads)
    usual: dict[str, Any] = {
        "key": [f"k{number}" for number in range(count)],
        "id": [f"i{number}" for number in range(count)],
        "queue": ["crm"] * count,
        "flow": ["nightly"] * count,
        "action": ["upsert"] * count,
        "headers": [{"tenant": "acme"}] * count,
        "attempt": [2] * count,
    }
    raw = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in payloads]
    return Rows(raw, usual | columns)


def made(source: Any, *payloads: Any) -> list[Any]:
    """The JSON that a template makes of each item."""
    return [json.loads(one) for one in compile_maker("item", source).encoded(rows(*payloads))]


def text(source: str, *payloads: Any) -> list[str]:
    return [one.decode() for one in compile_maker("item", source).encoded(rows(*payloads))]


class TestValues:
    @pytest.mark.parametrize(
        "source, value",
        [
            ("{{ payload.email }}", "ann@example.org"),
            ("{{payload.age}}", 41),
            ("{{ payload.score }}", 1.5),
            ("{{ payload.vip }}", True),
            ("{{ payload.nothing }}", None),
            ("{{ payload.tags }}", ["a", "b"]),
            ("{{ payload.tags[1] }}", "b"),
            ("{{ payload.address.city }}", "Ulm"),
            ("{{ payload['address'][\"city\"] }}", "Ulm"),
            ("{{ payload.items }}", "not a method"),
            ("{{ payload | tojson }}", json.dumps(CONTACT, separators=(",", ":"))),
            ("{{ payload.age + 1 }}", 42),
            ("{{ payload.email | upper }}", "ANN@EXAMPLE.ORG"),
            ("{{ payload.nick | default('none') }}", "none"),
            ("{{ payload.tags | map('upper') }}", ["A", "B"]),
            ("{{ 'old' if payload.age > 40 else 'young' }}", "old"),
            ("{{ key }}", "k0"),
            ("{{ id }}", "i0"),
            ("{{ queue }}-{{ flow }}-{{ action }}", "crm-nightly-upsert"),
            ("{{ headers.tenant }}", "acme"),
            ("{{ attempt }}", 2),
            ("{{ payload.age }} years", "41 years"),
            ("{{ payload.vip }}!", "true!"),
            ("[{{ payload.nothing }}]", "[]"),
            ("{{ payload.tags }} {{ payload.address }}", '["a","b"] {"city":"Ulm"}'),
            ("100 % {{ key }}", "100 % k0"),
            ("{% if payload.vip %}VIP{% endif %}", "VIP"),
            ("{{ payload.email | sha256 }}"[:-3] + " | length }}", 64),
            ("plain", "plain"),
            (7, 7),
            (None, None),
        ],
    )
    def test_a_leaf(self, source: Any, value: Any) -> None:
        assert made({"leaf": source}, CONTACT) == [{"leaf": value}]

    def test_the_text_of_the_payload_needs_no_json(self) -> None:
        assert made({"raw": "{{ payload_text }}"}, b"a,b") == [{"raw": "a,b"}]

    @settings(deadline=None)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abc"), inner),
        ),
        st.lists(st.sampled_from([".a", ".b", "[0]", "['c']"]), max_size=3).map("".join),
        st.sampled_from(["", "default('x')", 'd("")', "default(none)", "default( -1 )", "d(true)"]),
        st.sampled_from(["", " years"]),
    )
    def test_plain_fields_are_what_jinja_makes_of_them(
        self, payload: Any, path: str, default: str, after: str
    ) -> None:
        source = f"{{{{ payload{path}{default and ' | '}{default} }}}}{after}"
        compiled, used, is_text = compile_program("item", source, ITEM_NAMES, as_text)
        slow = Program("item", compiled, used, is_text=is_text)
        fast = compile_value("item", source)
        assert not isinstance(fast, Program)
        try:
            expected = slow.values(rows(payload))
        except Unrenderable:
            with pytest.raises(Unrenderable, match="missing"):
                fast.values(rows(payload))
            return
        assert fast.values(rows(payload)) == expected


class TestObjects:
    def test_names_and_lists_are_kept(self) -> None:
        source = {"type": "Contact", "n": [1, "{{ payload.age }}", {"x": "{{ key }}"}], "e": {}}
        assert made(source, CONTACT) == [{"type": "Contact", "n": [1, 41, {"x": "k0"}], "e": {}}]

    def test_the_whole_payload_is_passed_on_as_it_is(self) -> None:
        exact = b'{"amount": 1.10, "id": 12345678901234567890123}'
        (found,) = compile_maker("item", {"properties": "{{ payload }}"}).encoded(rows(exact))
        assert found == b'{"properties":' + exact + b"}"

    def test_a_payload_on_several_lines_is_put_on_one(self) -> None:
        (found,) = compile_maker("item", "{{ payload }}").encoded(rows(b'{\n "a": 1\r\n}'))
        assert found == b'{"a":1}'

    def test_members_can_be_left_out(self) -> None:
        source = {"a": "{{ payload.a | default(omit) }}", "b": "{{ payload.b | default(omit) }}"}
        assert made(source, {"a": 1}, {"b": None}, {}) == [{"a": 1}, {"b": None}, {}]

    def test_a_condition_can_leave_a_member_out(self) -> None:
        source = {"in": {"a": "{{ payload.a if payload.a else omit }}", "z": 1}}
        assert made(source, {"a": 1}, {"a": 0}) == [{"in": {"a": 1, "z": 1}}, {"in": {"z": 1}}]


class TestTexts:
    def test_lines(self) -> None:
        source = '{"index":{"_id":{{ key | tojson }}}}\n{{ payload | tojson }}\n'
        assert text(source, {"a": 1}, {"a": 2}) == [
            '{"index":{"_id":"k0"}}\n{"a":1}\n',
            '{"index":{"_id":"k1"}}\n{"a":2}\n',
        ]

    def test_xml_csv_and_forms(self) -> None:
        payload = {"n": 'a "b" & c', "tags": ["x", "y"]}
        assert text("<n>{{ payload.n | e }}</n>", payload) == ["<n>a &#34;b&#34; &amp; c</n>"]
        assert text("{{ [payload.n, 1] | csv }}\n", payload) == ['"a ""b"" & c",1\n']
        assert text("n={{ payload.n | urlencode }}&x=1", payload) == ["n=a%20%22b%22%20%26%20c&x=1"]
        loop = "{% for tag in payload.tags %}<t>{{ tag }}</t>{% endfor %}"
        assert text(loop, payload) == ["<t>x</t><t>y</t>"]

    def test_values_in_addresses_are_percent_encoded(self) -> None:
        for source in ("/c/{{ key }}", "/c/{{ key | lower }}", "/c/{{ key | urlencode }}"):
            value = compile_text("url", source, ITEM_NAMES, as_url_part)
            assert value.values(rows({}, key=["a/b?c#d e"])) == ["/c/a%2Fb%3Fc%23d%20e"]

    @pytest.mark.parametrize("key", [None, "", ".", ".."])
    def test_an_address_needs_its_values(self, key: str | None) -> None:
        for source in ("/c/{{ key }}", "/c/{{ key | trim }}" if key else "/c/{{ key }}/x"):
            value = compile_text("url", source, ITEM_NAMES, as_url_part)
            with pytest.raises(Unrenderable, match="address"):
                value.values(rows({}, key=[key]))


class TestUnrenderable:
    @pytest.mark.parametrize(
        "source, payload, says",
        [
            ("{{ payload.email }}", {}, "item.x: payload.email is missing"),
            ("{{ payload.a.b[0] }}", {"a": {"b": []}}, "item.x: payload.a.b[0] is missing"),
            ("{{ payload.a.b }}", {"a": None}, "payload.a.b is missing"),
            ("{{ payload.email | upper }}", {}, "item.x: email is missing"),
            ("Dear {{ payload.name }}", {}, "item.x: payload.name is missing"),
            ("{{ payload.a }}", b"a,b", "the payload is not JSON"),
            ("{{ payload.a }}", b"\xff", "the payload is not JSON"),
            ("{{ payload_text }}", b"\xff", "the payload is not UTF-8"),
            ("{{ payload.a + 1 }}", {"a": "x"}, "item.x: "),
            ("{{ 1 / payload.a }}", {"a": 0}, "item.x: division by zero"),
            ("{{ payload.email.__class__ }}", {"email": "a"}, "is missing"),
            ("{{ payload.email['__class__'] | upper }}", {"email": "a"}, "is missing"),
        ],
    )
    def test_says_which_field(self, source: str, payload: Any, says: str) -> None:
        with pytest.raises(Unrenderable) as caught:
            made({"x": source}, payload)
        assert says in str(caught.value)

    def test_endless_work_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nested = "{% for a in payload %}{% for b in payload %}x{% endfor %}{% endfor %}"
        assert text(nested, list(range(300))) == ["x" * 90_000]
        with pytest.raises(Unrenderable, match="more than 100000 steps"):
            text(nested, list(range(317)))
        monkeypatch.setattr(templates, "OUTPUT_BYTES_MAX", 1000)
        with pytest.raises(Unrenderable, match="longer than 1000 bytes"):
            text("{% for a in payload %}{{ payload }}{% endfor %}", list(range(100)))

    @pytest.mark.parametrize(
        "source",
        ["{{ 'x' * payload }}", "{{ payload * 'x' }}", "{{ '%1000000000d' % payload }}"],
    )
    def test_texts_cannot_be_multiplied(self, source: str) -> None:
        with pytest.raises(Unrenderable, match="is for numbers"):
            text(source, 1_000_000_000)


class TestRefused:
    @pytest.mark.parametrize(
        "source, says",
        [
            ("{{ payload.email", "item: line 1: unexpected end of template"),
            (
                "{{ nope }}",
                "'nope' is not a name here: use action, attempt, flow, headers, id, key, omit",
            ),
            ("{{ payload | nope }}", "line 1: No filter named 'nope'"),
            ("{{ payload.email.upper() }}", "'call' is not allowed"),
            ("{{ range(9) }}", "'call' is not allowed"),
            ("{{ 9 ** 9 }}", "'pow' is not allowed"),
            ("{% macro m() %}{% endmacro %}", "'macro' is not allowed"),
            ("{% include 'x' %}", "'include' is not allowed"),
            ("{% for a in payload recursive %}{% endfor %}", "a recursive loop is not allowed"),
            ("{{ payload | center(1000000000) }}", "No filter named 'center'"),
            ("{{ payload.a | default(omit) }} x", "omit is the whole value"),
            ("{{ payload.a | default(omit) }}", "omit is for members"),
            ({"{{ key }}": 1}, "not a valid member name"),
            (["{{ payload.a | default(omit) }}"], "item[0]: omit is for members"),
            ("{{ items }}", "'items' is not a name here"),
            ("x" * 70_000, "at most 65536 characters"),
            ("{{ " + "(" * 3000 + ")" * 3000 + " }}", "item: "),
        ],
    )
    def test_a_template_that_cannot_work(self, source: Any, says: str) -> None:
        with pytest.raises(BadTemplate) as caught:
            compile_maker("item", source)
        assert says in str(caught.value)

    def test_a_body_that_mixes_all_items_with_one(self) -> None:
        with pytest.raises(BadTemplate, match="uses items together with payload"):
            compile_body(
                "body", {"n": "{{ count }}", "t": "{{ payload.t }}"}, items_are_texts=False
            )


class TestBodies:
    ITEMS = (b'{"n":1}', b'{"n":2}')

    @pytest.mark.parametrize(
        "source, kind, expected",
        [
            (None, ListBody, '[{"n":1},{"n":2}]'),
            ("{{ items }}", ListBody, '[{"n":1},{"n":2}]'),
            ({"ok": False, "r": "{{ items }}"}, ListBody, '{"ok":false,"r":[{"n":1},{"n":2}]}'),
            ({"q": "{{ queue }}", "r": "{{items}}"}, ListBody, '{"q":"crm","r":[{"n":1},{"n":2}]}'),
            ("{{ items | join('\\n') }}\n", ListBody, '{"n":1}\n{"n":2}\n'),
            ("{{ items | join('\n') }}", ListBody, '{"n":1}\n{"n":2}'),
            ("<a>{{ items | join }}</a>", ListBody, '<a>{"n":1}{"n":2}</a>'),
            ("{{ flow }}:{{ items | join(', ') }}", ListBody, 'nightly:{"n":1}, {"n":2}'),
            ({"c": "{{ count }}", "r": "{{ items }}"}, FreeBody, '{"c":2,"r":[{"n":1},{"n":2}]}'),
            ("{% for i in items %}{{ i.n }};{% endfor %}", FreeBody, "1;2;"),
            ({"ns": "{{ items | map(attribute='n') }}"}, FreeBody, '{"ns":[1,2]}'),
        ],
    )
    def test_of_several_items(self, source: Any, kind: type, expected: str) -> None:
        body = compile_body("body", source, items_are_texts=False)
        assert type(body) is kind
        frame, same = body.frames(rows({}, {}))
        assert frame == same
        assert body.write(frame, self.ITEMS).decode() == expected

    def test_texts_follow_each_other_or_are_quoted(self) -> None:
        def written(source: Any) -> str:
            body = compile_body("body", source, items_are_texts=True)
            return body.write(body.frames(rows({}))[0], [b"a\n", b"b\n"]).decode()

        assert written(None) == "a\nb\n"
        assert written({"lines": "{{ items }}"}) == '{"lines":["a\\n","b\\n"]}'
        assert written("{% for i in items %}-{{ i }}{% endfor %}") == "-a\n-b\n"

    def test_of_a_single_item(self) -> None:
        source = {"query": "mutation", "variables": "{{ payload }}"}
        body = compile_body("body", source, items_are_texts=False)
        assert type(body) is ItemBody
        assert not body.takes_items
        (frame,) = body.frames(rows({"a": 1}))
        assert json.loads(body.write(frame, [b""])) == {"query": "mutation", "variables": {"a": 1}}
