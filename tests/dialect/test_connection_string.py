"""Connection strings, as the official SDKs read and write them."""

from __future__ import annotations

import pytest
from azure.servicebus import parse_connection_string as parse_with_the_sdk
from hypothesis import given
from hypothesis import strategies as st

from pairbus.dialect.connection_string import ConnectionString, ConnectionStringError, parse_connection_string

LOCAL = ConnectionString(host="localhost", port=5672, key_name="root", key="a+b/c==", development=True)


def test_connection_string_round_trips() -> None:
    assert parse_connection_string(str(LOCAL)) == LOCAL


def test_azure_sdk_parses_connection_string() -> None:
    properties = parse_with_the_sdk(str(LOCAL))
    assert properties.endpoint == "sb://localhost:5672/"
    assert properties.shared_access_key_name == "root"
    assert properties.shared_access_key == "a+b/c=="


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Endpoint=sb://contoso/", ConnectionString(host="contoso")),
        ("endpoint=sb://CONTOSO:1;", ConnectionString(host="contoso", port=1)),
        ("HostName=contoso", ConnectionString(host="contoso")),
        (
            " Endpoint = sb://c ; SharedAccessSignature = SharedAccessSignature sr=x&sig=y ; EntityPath=a/b ",
            ConnectionString(host="c", token="SharedAccessSignature sr=x&sig=y", entity_path="a/b"),  # noqa: S106
        ),
        ("Endpoint=sb://[::1]:5672", ConnectionString(host="::1", port=5672)),
        ("Endpoint=sb://c;TransportType=Amqp", ConnectionString(host="c", web_sockets=False)),
        ("Endpoint=sb://c;transporttype=amqpwebsockets", ConnectionString(host="c", web_sockets=True)),
        ("Endpoint=sb://c;TransportType=NetMessaging", ConnectionString(host="c", web_sockets=False)),
        (
            "Endpoint=sb://c;StsEndpoint=https://c:9355/n;RuntimePort=9354;ManagementPort=9355",
            ConnectionString(host="c"),
        ),
    ],
)
def test_many_spellings_are_accepted(text: str, expected: ConnectionString) -> None:
    assert parse_connection_string(text) == expected


@pytest.mark.parametrize(
    ("text", "timeout_s"),
    [("00:00:30", 30), ("0:1:30", 90), ("00:45", 2_700), ("0.00:00:01", 1), ("00:00:00.5", 0.5), ("45", 45)],
)
def test_operation_timeout_is_parsed_as_in_dotnet(text: str, timeout_s: float) -> None:
    parsed = parse_connection_string(f"Endpoint=sb://a;OperationTimeout={text}")
    assert parsed.operation_timeout_ms == 1_000 * timeout_s
    assert parse_connection_string(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("part", "message"),
    [
        *(
            (f"OperationTimeout={text}", "must be hours:minutes:seconds, such as 00:00:30, or seconds")
            for text in ("", "soon", "PT30S", "-00:00:30", "00:00:61", "24:00:00", "1.5")
        ),
        *(
            (f"OperationTimeout={text}", "must be above zero and below one hour, got")
            for text in ("0", "00:00:00", "01:00:00", "3600", "1.00:00:00")
        ),
        ("TransportType=carrier", "TransportType must be Amqp, AmqpWebSockets or NetMessaging"),
        ("TransportType=", "TransportType must be"),
    ],
)
def test_invalid_operation_timeout_and_transport_type_are_rejected(part: str, message: str) -> None:
    with pytest.raises(ConnectionStringError, match=message):
        parse_connection_string(f"Endpoint=sb://a;{part}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Endpoint=",
        "Endpoint",
        "Endpoint=sb://",
        "Endpoint=sb://a:port",
        "Endpoint=sb://a:99999",
        "Endpoint=sb://a;Endpoint=sb://b",
        "Endpoint=sb://a;SharedAccessKey=secret",
        "Endpoint=sb://a;SharedAccessKeyName=k",
        "Endpoint=sb://a;SharedAccessKeyName=k;SharedAccessKey=secret;SharedAccessSignature=secret",
        "Endpoint=sb://a;Colour=red",
        "=x;Endpoint=sb://a",
        "Endpoint=sb//secret",
        "Endpoint=sb://a/SharedAccessKey=secret",
        "Endpoint=sb://a?secret",
        "Endpoint=sb://a;SharedAccessKeyName=k;c2VjcmV0secret=",
    ],
)
def test_e3_invalid_connection_string_is_rejected_without_its_secrets(text: str) -> None:
    with pytest.raises(ConnectionStringError) as refused:
        parse_connection_string(text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("endpoint", ["sb//contoso", "sb:/contoso", "sb://contoso/SharedAccessKeyName=root"])
def test_e4_misspelt_endpoint_is_rejected(endpoint: str) -> None:
    with pytest.raises(ConnectionStringError, match=r"must be written as sb://host or sb://host:port"):
        parse_connection_string(f"Endpoint={endpoint};SharedAccessKeyName=root;SharedAccessKey=a+b/c==")


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("SharedAccesKey", "SharedAccessKey"),
        ("SharedAccessKeyNam", "SharedAccessKeyName"),
        ("UseDevelopmentEmulater", "UseDevelopmentEmulator"),
        ("EntityPaht", "EntityPath"),
    ],
)
def test_e4_misspelt_part_is_reported_with_suggestion(slip: str, meant: str) -> None:
    with pytest.raises(ConnectionStringError) as refused:
        parse_connection_string(f"Endpoint=sb://a;{slip}=secret")
    assert f"part 2 of the connection string is called {slip}, which is unknown; is {meant} meant?" in str(
        refused.value
    )
    assert "secret" not in str(refused.value)


def test_e4_unknown_part_is_reported_with_known_ones() -> None:
    with pytest.raises(
        ConnectionStringError, match=r"part 2 .* is unknown: 'Colour'; there are Endpoint, .*EntityPath"
    ):
        parse_connection_string("Endpoint=sb://a;Colour=red")


@given(st.text())
def test_e3_any_text_is_parsed_or_rejected(text: str) -> None:
    for candidate in (text, f"Endpoint={text}", f"Endpoint=sb://a;{text}"):
        try:
            parse_connection_string(candidate)
        except ConnectionStringError:
            continue


def test_repr_hides_secrets() -> None:
    assert "a+b/c==" not in repr(LOCAL)
