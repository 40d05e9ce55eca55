"""Rules of subscriptions over HTTP."""

from __future__ import annotations

import pytest

from pairbus.broker import CorrelationFilter, FalseFilter, Instant, Rule, Span, SqlFilterDescription, TrueFilter, Value
from pairbus.dialect.atom import RULE
from tests.server.http.site import HOST, Site

RULES = "/t/x/Subscriptions/s/Rules"
ALL_TYPES = "".join(
    f'<KeyValueOfstringanyType><Key>@{kind}</Key><Value i:type="d6p1:{kind}"'
    f' xmlns:d6p1="http://www.w3.org/2001/XMLSchema">{text}</Value></KeyValueOfstringanyType>'
    for kind, text in {
        "string": "two words",
        "int": "7",
        "long": "1099511627776",
        "double": "1.5",
        "boolean": "true",
        "dateTime": "2020-07-05T11:12:13Z",
        "duration": "P1DT2H3M",
    }.items()
)
ALL_VALUES: dict[str, Value] = {
    "@string": "two words",
    "@int": 7,
    "@long": 2**40,
    "@double": 1.5,
    "@boolean": True,
    "@dateTime": Instant(1_593_947_533_000),
    "@duration": Span(93_780_000),
}


@pytest.fixture
def subscribed(site: Site) -> Site:
    assert site.put("/t/x", "<TopicDescription/>").status == 201
    assert site.put("/t/x/Subscriptions/s", "<SubscriptionDescription/>").status == 201
    return site


def rule(filter_: str, action: str = '<Action i:type="EmptyRuleAction"/>', name: str = "r") -> str:
    return f"<RuleDescription>{filter_}{action}<Name>{name}</Name></RuleDescription>"


def sql(expression: str) -> str:
    return f'<Filter i:type="SqlFilter"><SqlExpression>{expression}</SqlExpression></Filter>'


def kept(site: Site, name: str = "r") -> Rule:
    return next(rule for rule in site.namespace.rules("t/x", "s", site.now_ms) if rule.description.name == name)


def test_new_subscription_matches_everything(subscribed: Site) -> None:
    (entry,) = subscribed.get(f"{RULES}/").feed(RULE).entries
    assert entry.id == f"https://{HOST}{RULES}/$Default?api-version=2021-05"
    assert entry.title == "$Default"
    assert entry.values["filter"] == {"type": "TrueFilter", "expression": "1=1"}
    assert entry.values["action"] == {"type": "EmptyRuleAction"}


def test_subscription_with_another_first_rule(site: Site) -> None:
    site.put("/t/x", "<TopicDescription/>")
    first = rule(sql("a=1"), name="first").replace("RuleDescription", "DefaultRuleDescription")
    site.put("/t/x/Subscriptions/s", f"<SubscriptionDescription>{first}</SubscriptionDescription>")
    assert [entry.title for entry in site.get(RULES).feed(RULE).entries] == ["first"]


def test_parameters_of_every_type(subscribed: Site) -> None:
    pairs = f"<Parameters>{ALL_TYPES}</Parameters>"
    filter_ = f'<Filter i:type="SqlFilter"><SqlExpression>a=@int</SqlExpression>{pairs}</Filter>'
    action = f'<Action i:type="SqlRuleAction"><SqlExpression>SET b=@int</SqlExpression>{pairs}</Action>'
    created = subscribed.put(f"{RULES}/r", rule(filter_, action))
    assert created.status == 201
    description = kept(subscribed).description
    assert isinstance(description.filter, SqlFilterDescription)
    assert description.action is not None
    for found in (description.filter.parameters, description.action.parameters):
        assert found == ALL_VALUES
        assert {name: type(value) for name, value in found.items()} == {
            name: type(value) for name, value in ALL_VALUES.items()
        }
    assert subscribed.update(f"{RULES}/r", created.body).status == 200
    assert kept(subscribed).description == description
    assert subscribed.get(f"{RULES}/r").body == created.body


@pytest.mark.parametrize("text", ["2020-07-05T11:12:13", "2020-07-05T11:12:13.25", "2020-07-05T11:12:13.25Z"])
def test_time_keeps_its_zone_or_the_lack_of_one_over_a_restart(subscribed: Site, text: str) -> None:
    pair = (
        '<KeyValueOfstringanyType><Key>@t</Key><Value i:type="d6p1:dateTime"'
        f' xmlns:d6p1="http://www.w3.org/2001/XMLSchema">{text}</Value></KeyValueOfstringanyType>'
    )
    parameters = f"<Parameters>{pair}</Parameters>"
    action = f'<Action i:type="SqlRuleAction"><SqlExpression>SET a=@t</SqlExpression>{parameters}</Action>'
    filter_ = f'<Filter i:type="CorrelationFilter"><Properties>{pair}</Properties></Filter>'
    created = subscribed.put(f"{RULES}/r", rule(filter_, action))
    written = created.body.count(f">{text}</Value>".encode().replace(b".25", b".250"))
    assert written == 2
    with Site(store=subscribed.store) as restarted:
        assert restarted.get(f"{RULES}/r").body == created.body


def test_correlation_filter(subscribed: Site) -> None:
    fields = ("CorrelationId", "MessageId", "To", "ReplyTo", "Label", "SessionId", "ReplyToSessionId", "ContentType")
    texts = "".join(f"<{field}>{field.lower()}</{field}>" for field in fields)
    properties = f"<Properties>{ALL_TYPES}</Properties>"
    created = subscribed.put(
        f"{RULES}/r", rule(f'<Filter i:type="CorrelationFilter">{texts}{properties}</Filter>', action="")
    )
    assert created.status == 201
    assert kept(subscribed).description.filter == CorrelationFilter(
        correlation_id="correlationid",
        message_id="messageid",
        to="to",
        reply_to="replyto",
        label="label",
        session_id="sessionid",
        reply_to_session_id="replytosessionid",
        content_type="contenttype",
        properties=ALL_VALUES,
    )
    assert subscribed.update(f"{RULES}/r", created.body).status == 200
    assert subscribed.get(f"{RULES}/r").body == created.body


@pytest.mark.parametrize(("kind", "expected"), [("TrueFilter", TrueFilter()), ("FalseFilter", FalseFilter())])
def test_filters_without_a_condition(subscribed: Site, kind: str, expected: object) -> None:
    assert subscribed.put(f"{RULES}/r", rule(f'<Filter i:type="{kind}"/>')).status == 201
    assert kept(subscribed).description.filter == expected
    assert subscribed.get(f"{RULES}/R").entry(RULE).values["filter"]["type"] == kind


def test_path_names_the_rule(subscribed: Site) -> None:
    subscribed.put(f"{RULES}/mine", rule(sql("a=1"), name="other"))
    assert subscribed.get(f"{RULES}/mine").status == 200
    assert subscribed.get(f"{RULES}/other").status == 404


def test_changing_and_deleting(subscribed: Site) -> None:
    assert subscribed.update(f"{RULES}/r", rule(sql("a=1"))).status == 404
    assert subscribed.put(f"{RULES}/r", rule(sql("a=1"))).status == 201
    assert subscribed.put(f"{RULES}/r", rule(sql("a=2"))).status == 409
    assert subscribed.update(f"{RULES}/r", rule(sql("a=3"))).status == 200
    assert kept(subscribed).description.filter == SqlFilterDescription("a=3")
    assert subscribed.delete(f"{RULES}/r").status == 200
    assert subscribed.delete(f"{RULES}/r").status == 404
    assert subscribed.get(f"{RULES}/r").status == 404


def test_rules_are_listed_in_creation_order(subscribed: Site) -> None:
    for name in ("zebra", "ant"):
        subscribed.put(f"{RULES}/{name}", rule(sql("a=1")))
    assert [entry.title for entry in subscribed.get(RULES).feed(RULE).entries] == ["$Default", "zebra", "ant"]


@pytest.mark.parametrize(
    "content",
    [
        rule(sql("a = = b")),
        rule(sql("")),
        rule('<Filter i:type="SqlFilter"/>'),
        rule('<Filter i:type="CorrelationFilter"/>'),
        rule('<Filter i:type="MagicFilter"/>'),
        rule(sql("a=1"), '<Action i:type="SqlRuleAction"/>'),
        rule(sql("a=1"), '<Action i:type="SqlRuleAction"><SqlExpression>DROP a</SqlExpression></Action>'),
        rule(sql("a='" + "x" * 1_024 + "'")),
        "<QueueDescription/>",
    ],
    ids=["sql", "empty", "no expression", "nothing to compare", "unknown", "no action", "action", "long", "no rule"],
)
def test_wrong_rules(subscribed: Site, content: str) -> None:
    reply = subscribed.put(f"{RULES}/r", content)
    assert reply.status == 400
    assert reply.detail.startswith("SubCode=40000. ")
    assert subscribed.get(f"{RULES}/r").status == 404


@pytest.mark.parametrize(
    "path", ["/t/x/Subscriptions/none/Rules", "/none/Subscriptions/s/Rules", "/none/Subscriptions"]
)
def test_rules_of_a_missing_subscription_are_not_found(subscribed: Site, path: str) -> None:
    assert subscribed.get(path).status == 404
    assert subscribed.get(f"{path}/r").status == 404
