"""Generate reference pages, and blocks within pages, from the code: ``python docs/generate.py``."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum, IntEnum
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import GenericAlias, ModuleType, UnionType
from typing import Any

import typer
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import pairbus
from pairbus import blocking, broker, client, pairing, server, store, testing, wire
from pairbus.broker import errors as broker_errors
from pairbus.broker import limits as broker_limits
from pairbus.cli import message_lines
from pairbus.cli.main import app as commands
from pairbus.client import amqp_json
from pairbus.entity_settings import ENTITY_SETTINGS, STATUSES
from pairbus.fault_kinds import FAULT_RULES
from pairbus.jobs.syphon.settings import SparkSyphonSettings
from pairbus.ledger import LedgerStatus
from pairbus.server import settings as server_settings
from pairbus.server.amqp.services import UnprovenConnections
from pairbus.server.audit import AuditLog, AuditMetrics
from pairbus.server.counters import Counters
from pairbus.server.entity_traffic import EntityTraffic, EntityTrafficMetrics
from pairbus.server.http.metrics import (
    ComponentMetrics,
    EntityMetrics,
    FaultMetrics,
    LedgerMetrics,
    Metrics,
    StorageMetrics,
    StorageReading,
    StorageState,
    StorageStateMetrics,
    TotalMetrics,
    Traffic,
    UnprovenConnectionMetrics,
)
from pairbus.server.peer_limits import AddressLimit, LoginLimiter
from pairbus.server.side_buffer.buffer import SideBufferMetrics
from pairbus.server.side_buffer.entity_buffers import BufferCounts
from pairbus.server.supervision.supervisor import Supervisor
from pairbus.server.supervision.watchdog import LoopWatchdog
from pairbus.spark import outgoing, value_text
from pairbus.spark import schema as spark_schema
from pairbus.spark.options import SINK_OPTIONS, SOURCE_OPTIONS, Option
from pairbus.store import errors as store_errors
from pairbus.store import keys
from pairbus.wire import states

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference"
EXPLANATION = DOCS / "explanation"

# States.

STATES_HEAD = """# States

Generated from `pairbus/wire/states.py` by `docs/generate.py`.

The state machines of the AMQP engine. Connections, sessions and links have two ends, and each end has its own state:
the diagrams apply to the frames that pairbus sends and to those that the peer sends. A frame without an arrow is a
protocol error in that state. A SASL exchange has one state, because the ends take turns.
"""

MACHINES: list[tuple[str, dict[tuple[int, int], IntEnum], type[IntEnum], type[IntEnum]]] = [
    ("One end of a connection", {**states.CONNECTION}, states.ConnectionState, states.Frame),
    ("One end of a session", {**states.SESSION}, states.SessionState, states.Frame),
    ("One end of a link", {**states.LINK}, states.LinkState, states.Frame),
    ("A SASL exchange", {**states.SASL}, states.SaslState, states.SaslFrame),
]


def states_page() -> str:
    """Return the page with the diagrams of the tables of ``states``."""
    return STATES_HEAD + "".join(_diagram(*machine) for machine in MACHINES)


def _diagram(
    title: str, table: dict[tuple[int, int], IntEnum], state_names: type[IntEnum], frame_names: type[IntEnum]
) -> str:
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, frame), following in table.items():
        pair = (state_names(state).name, following.name)
        arrows.setdefault(pair, []).append(frame_names(frame).name.lower())
    lines = [f"    {start} --> {end}: {', '.join(frames)}" for (start, end), frames in arrows.items()]
    first = f"    [*] --> {next(iter(state_names)).name}"
    return "\n".join(["", f"## {title}", "", "```mermaid", "stateDiagram-v2", first, *lines, "```", ""])


# Public names: a page for each package.

API_HEAD = """# Names of `{name}`

The public names of `{name}`, generated from the code by `docs/generate.py`. Import them from `{name}`. Names that are
not listed here are internal and can change without notice. {more}
"""

Belongs = Callable[[Any], bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
    """A package with public names, and the order of its page."""

    module: ModuleType
    more: str
    """The page that shows these names in use."""
    first: dict[str, list[str]]
    """The names that come first, under a title each."""
    sections: dict[str, Belongs]
    """The sections of the other names: a name belongs to the first section whose function accepts it."""
    like: ModuleType | None = None
    """The package whose page describes the names that both export."""
    constructed: tuple[str, ...] = ()
    """More classes that callers create themselves and whose parameters are not fields."""


def api_page(package: Package) -> str:
    """Return the page that lists the public names of a package."""
    name = package.module.__name__
    parts = [API_HEAD.format(name=name, more=package.more)]
    taken: set[str] = set()
    for title, names in package.first.items():
        parts += _section(package, title, names)
        taken.update(names)
    for title, belongs in package.sections.items():
        names = [
            found for found in package.module.__all__ if found not in taken and belongs(getattr(package.module, found))
        ]
        parts += _section(package, title, names)
        taken.update(names)
    return "".join(parts)


def _section(package: Package, title: str, names: list[str]) -> list[str]:
    return [f"\n## {title}\n\n", *(_entry(package, name) for name in names)] if names else []


def _is_error(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, Exception)


def _is_enumeration(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, Enum)


def _is_class(thing: Any) -> bool:
    return isinstance(thing, type)


def _is_of(module: str, thing: Any) -> bool:
    return isinstance(thing, type) and thing.__module__ == module


def _is_alias(thing: Any) -> bool:
    return isinstance(thing, UnionType | GenericAlias)


MEMBERS: dict[str, list[str]] = {
    "Connection": [
        "open", "begin", "close", "receive_data", "data_to_send", "tick", "is_open", "is_closed", "is_finished",
    ],
    "Session": ["begin", "attach", "end", "is_mapped", "unsettled", "queued"],
    "Link": [
        "attach", "refuse", "detach", "flow", "drained", "send", "settle", "update", "can_send", "is_attached",
    ],
    "Sections": [],
    "WriteBatch": ["is_empty", "seal", "sealed", "admit"],
    "LmdbStore": [],
    "MemoryStore": ["fail_next_prepare", "fail_next_run", "damage"],
    "NamespaceRestore": [],
    "MessagingFactory": [
        "from_connection_string", "create", "endpoint", "settings", "state", "is_closed", "create_message_sender",
        "create_message_receiver", "create_queue_client", "create_topic_client", "create_subscription_client",
        "accept_message_session", "pair_namespace", "close", "fault",
    ],
    "MessageSession": ["session_id", "locked_until", "renew_lock", "get_state", "set_state"],
    "MessagingFactorySettings": [],
    "RetryPolicy": [],
    "SendAvailabilityPairedNamespaceOptions": [],
    "NamespacePair": [
        "primary_name", "status", "metrics", "backlog_depth", "subscribe", "events", "report", "engage", "release",
        "drill",
    ],
}  # fmt: skip
"""The members to show of classes for which not all public members are shown."""

NOT_FOR_APPLICATIONS = {"pair": "MessageSender"}
"""Members that are public for other packages only, by class."""

OUR_OWN = (
    "pairbus.broker", "pairbus.store", "pairbus.server", "pairbus.testing", "pairbus.client", "pairbus.pairing",
    "pairbus.blocking",
)  # fmt: skip
"""The packages whose classes are shown with all public members."""

CONSTRUCTED = ["Namespace", "GroupCommitter", "LmdbStore", "MemoryStore", "NamespaceServer", "BrokeredMessage"]
"""The classes that callers create themselves and whose parameters are not fields."""

ATTRIBUTES: dict[str, dict[str, str]] = {
    "NamespaceServer": {
        "settings: Settings": "The settings.",
        "ports: tuple[int, ...]": "The ports on which the server listens.",
        "ca_file: Path | None": "The certificate that signs the server's own certificate; `None` if the settings name"
        " a certificate.",
        "key: str": "The value of the root key.",
    },
    "GroupCommitter": {
        "recovery: Recovery": "The result of the last time the store was read.",
        "rebuilt: Callable[[Recovery], object]": "Called when a commit failed and the store was read again; assign your"
        " own function.",
    },
    "NamespaceManager": {
        "endpoint: Endpoint": "The endpoint of the namespace.",
        "settings: MessagingFactorySettings": "The settings.",
    },
    "MessagingError": {
        "is_transient: bool": "True if the same call is likely to succeed later.",
        "entity: str | None": "The path of the queue, topic or subscription concerned.",
        "condition: str | None": "The AMQP error condition that the namespace sent.",
        "message: str": "The text alone; `str()` of the error adds the other attributes.",
        "hint: str": "How to fix it.",
    },
    "BacklogUnavailableError": {
        "causes: Mapping[str, MessagingError]": "The error of each backlog queue, by path.",
    },
}
"""Attributes of instances besides methods and properties, with their descriptions."""

EVENTS = [
    "Authenticated", "ConnectionOpened", "ConnectionClosed", "SessionBegun", "SessionEnded", "LinkAttached",
    "LinkDetached", "CreditGranted", "LinkDrained", "Delivery", "DeliveryAborted", "DispositionReceived", "Event",
]  # fmt: skip

WIRE_DELIVERY = ["link", "delivery_id", "delivery_tag", "message_format", "payload", "settled", "state", "context"]

WIRE = Package(
    module=wire,
    more="[How to put the engine on a socket](../how-to/socket.md) uses these names in examples.",
    first={"The ends": ["Connection", "Session", "Link"], "Events that `receive_data` returns": EVENTS},
    sections={
        "Errors": _is_error,
        "AMQP values without a Python type of their own": partial(_is_of, "pairbus.wire.types"),
        "Enumerations": _is_enumeration,
        "Composites and settings": _is_class,
        "Functions": inspect.isfunction,
        "Constants": lambda _: True,
    },
)

BROKER = Package(
    module=broker,
    more="[How to embed](../how-to/embed.md) uses these names in examples;\nthe [broker reference](broker.md)"
    " describes their behaviour.",
    first={
        "The namespace": ["Namespace", "SessionGrant", "EntityInfo", "Notice", "SessionLost", "EntityGone"],
        "Messages": [
            "Address", "QueuePart", "NewMessage", "DeliveredMessage", "Record", "Amendments", "MessageState",
            "SettlementRequest", "SettlementKind", "TransactionOperation", "SendOperation", "SettleOperation",
        ],
        "Dependencies of the namespace": [
            "Records", "PropertyView", "NamespaceRestore", "QueueId", "EntityRecord",
        ],
    },
    sections={
        "Settings": partial(_is_of, "pairbus.broker.descriptions"),
        "Errors": _is_error,
        "Values and limits": _is_class,
        "Type aliases": _is_alias,
        "Constants": lambda _: True,
    },
)  # fmt: skip

STORE = Package(
    module=store,
    more="[How to embed](../how-to/embed.md) uses these names in examples;\nthe"
    " [disk layout](../explanation/disk-layout.md) describes the files.",
    first={"A durable namespace": ["GroupCommitter", "Recovery", "WriteBatch"]},
    sections={
        "Errors": _is_error,
        "Stores": _is_class,
        "Type aliases": _is_alias,
        "Functions": inspect.isfunction,
        "Constants": lambda _: True,
    },
)


SERVER = Package(
    module=server,
    more="[How to serve](../how-to/serve.md) uses these names in examples.",
    first={"The server": ["NamespaceServer"], "Settings": ["Settings", "load_settings"]},
    sections={"Errors": _is_error, "Enumerations": _is_enumeration, "Constants": lambda _: True},
)

TESTING = Package(
    module=testing,
    more="[In a test](../index.md#in-a-test) uses these names in an example.",
    first={
        "A namespace in the process of the test": ["running_namespace", "RunningNamespace"],
        "Faults": ["FaultControl", "FaultKind", "CrashComponent", "Fault"],
    },
    sections={"Constants": lambda _: True},
)

ENTRY_POINT = {
    "Entry point": ["MessagingFactory", "FactoryState"],
    "Senders, receivers and clients": [
        "MessageSender", "MessageReceiver", "MessageSession", "QueueClient", "TopicClient", "SubscriptionClient",
        "ReceiveMode",
    ],
    "Messages": ["BrokeredMessage", "ReceivedMessage", "BodyKind", "MessageState", "AmqpView"],
    "Endpoint, credentials and settings": [
        "Endpoint", "TokenProvider", "Token", "PlainCredentials", "MessagingFactorySettings", "Transport",
        "RetryPolicy", "NO_RETRY",
    ],
    "Management": ["NamespaceManager"],
}  # fmt: skip

CLIENT = Package(
    module=client,
    more="You can also import them from `pairbus`.\nMethods shown with `await` are coroutines. [First"
    " messages](../tutorial/first-messages.md) uses these names in examples,\nthe [client reference](client.md)"
    " describes their behaviour, and [errors](errors.md) lists when each error is raised.",
    first=ENTRY_POINT,
    sections={
        "Descriptions": partial(_is_of, "pairbus.client.management.descriptions"),
        "Rules": partial(_is_of, "pairbus.client.management.rules"),
        "Keys": partial(_is_of, "pairbus.client.management.descriptions"),
        "Runtime information": partial(_is_of, "pairbus.client.management.descriptions"),
        "Errors": _is_error,
        "Constants": lambda _: True,
    },
)

PAIR_NAMES = {"Pairing": ["SendAvailabilityPairedNamespaceOptions", "NamespacePair"]}

PAIRING = Package(
    module=pairing,
    more="You can also import them from `pairbus`.\nMethods shown with `await` are coroutines.",
    first={**PAIR_NAMES, "Status": ["PairStatus", "PairedEntityStatus", "EntityState", "BacklogQueueStatus"]},
    sections={
        "Events": partial(_is_of, "pairbus.pairing.events"),
        "The syphon": lambda thing: (
            _is_of("pairbus.pairing.syphon.interface", thing)
            or _is_of("pairbus.pairing.guarantee", thing)
            or thing is pairing.SyphonStatus
        ),
        "Failure classification": partial(_is_of, "pairbus.pairing.policy"),
        "Other classes": _is_class,
        "Type aliases": _is_alias,
        "Constants": lambda _: True,
    },
    constructed=("SendAvailabilityPairedNamespaceOptions",),
)

BLOCKING = Package(
    module=blocking,
    more="The names are those of\n[`pairbus.client`](api-client.md) and [`pairbus.pairing`](api-pairing.md);"
    " [how to use pairbus without asyncio](../how-to/blocking.md)\nuses them in examples.",
    first={
        **{
            title: names
            for title, names in ENTRY_POINT.items()
            if title in {"Entry point", "Senders, receivers and clients", "Management"}
        },
        **PAIR_NAMES,
    },
    sections={"Identical to the names in `pairbus`": lambda _: True},
    like=pairbus,
    constructed=("SendAvailabilityPairedNamespaceOptions",),
)


def _entry(package: Package, name: str) -> str:
    thing = getattr(package.module, name)
    if package.like is not None and getattr(package.like, name, None) is thing:
        return f"- `{name}`\n"
    if inspect.isfunction(thing):
        return f"- `{name}{_signature(package, thing)}`: {_summary(thing)}\n"
    if not isinstance(thing, type):
        return f"- `{name}` = {_constant(thing)}\n"
    members = [*_attributes(name), *(_member(package, thing, member) for member in _members(package, thing))]
    if name in CONSTRUCTED or name in package.constructed:
        maker = inspect.getattr_static(thing, "__init__")
        said = " ".join(filter(None, [_summary(thing), _plain(maker.__doc__ or "")]))
        return "".join([f"- `{name}{_signature(package, maker)}`: {said}\n", *members])
    if _has_typed_fields(thing):
        fields = [_typed_field(package, thing, field) for field in _fields(thing)]
        return "".join([f"- `{name}`{_said(thing)}\n", *fields, *members])
    fields = WIRE_DELIVERY if thing is wire.Delivery else _fields(thing)
    shown = f"`{name}`({', '.join(fields)})" if fields else f"`{name}`"
    return "".join([f"- {shown}{_kind(package, thing)}: {_summary(thing)}\n", *_declared(package, thing), *members])


def _kind(package: Package, thing: type) -> str:
    """Return the base class of this class in the package, if it has its own list of members."""
    base = next((base for base in thing.__mro__[1:] if base.__name__ in package.module.__all__), None)
    return f", a `{base.__name__}`" if base is not None and _is_ours(thing) else ""


def _is_ours(thing: type) -> bool:
    return thing.__module__.startswith(("pairbus.client", "pairbus.pairing", "pairbus.blocking"))


def _declared(package: Package, thing: type) -> list[str]:
    """Return the lines of the attributes that the class annotates."""
    if not _is_ours(thing) or dataclasses.is_dataclass(thing) or issubclass(thing, Exception | Enum):
        return []
    names = [name for name in inspect.get_annotations(thing) if not name.startswith("_")]
    return [_typed_field(package, thing, name) for name in names]


def _attributes(name: str) -> list[str]:
    return [f"  - `{attribute}`: {said}\n" for attribute, said in ATTRIBUTES.get(name, {}).items()]


def _has_typed_fields(thing: type) -> bool:
    """Return whether each field gets its own line: the limits have a table, and enumerations have no types."""
    is_ours = thing.__module__.startswith(("pairbus.broker", "pairbus.store", "pairbus.client", "pairbus.pairing"))
    return is_ours and bool(_fields(thing)) and not issubclass(thing, Enum) and thing is not broker.Limits


def _typed_field(package: Package, owner: type, name: str) -> str:
    kind = next(found[name] for found in map(inspect.get_annotations, owner.__mro__) if name in found)
    default = _field_default(package, owner, name)
    said = _field_texts(owner).get(name) or (SETTINGS.get(name) if _is_of("pairbus.broker.descriptions", owner) else "")
    return f"  - `{name}: {getattr(kind, '__forward_arg__', kind)}{default}`{f': {said}' if said else ''}\n"


def _field_default(package: Package, owner: type, name: str) -> str:
    if not dataclasses.is_dataclass(owner):
        defaults: dict[str, Any] = getattr(owner, "_field_defaults", {})
        return f" = {_default(package, defaults[name])}" if name in defaults else ""
    field = next(field for field in dataclasses.fields(owner) if field.name == name)
    if field.default_factory is not dataclasses.MISSING:
        return f" = {_brief(field.default_factory())}"
    return "" if field.default is dataclasses.MISSING else f" = {_default(package, field.default)}"


def _field_texts(owner: type) -> dict[str, str]:
    """Return the docstrings of fields, from the source."""
    (definition,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(definition, ast.ClassDef)  # noqa: S101 (it is the source of a class)
    texts = {}
    for field, below in pairwise(definition.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                texts[name] = _plain(text)
    return texts


def _constant(thing: Any) -> str:
    if isinstance(thing, broker.Limits):
        return "see the [limits](broker.md#limits)"
    if isinstance(thing, Mapping):
        return f"`{{{', '.join(f'{kind.__name__}: {value}' for kind, value in thing.items())}}}`"
    text = _brief(thing).replace("NoneType", "None")
    return f"`{re.sub(r'(pairbus|typing|collections|uuid)[.](?:[a-z_]+[.])*', '', text)}`"


def _brief(thing: Any) -> str:
    """Return a value as code, without fields that have their default."""
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type) or not _is_ours(type(thing)):
        return repr(thing)
    fields = {field.name: field.default for field in dataclasses.fields(thing)}
    shown = [f"{name}={getattr(thing, name)!r}" for name, usual in fields.items() if getattr(thing, name) != usual]
    return f"{type(thing).__name__}({', '.join(shown)})"


def _fields(thing: type) -> list[str]:
    if dataclasses.is_dataclass(thing):
        return [field.name for field in dataclasses.fields(thing)]
    if issubclass(thing, Enum):
        return (
            [member.name for member in thing]
            if thing.__module__.startswith(("pairbus.broker", "pairbus.client", "pairbus.pairing"))
            else []
        )
    return list(getattr(thing, "_fields", ()))


def _members(package: Package, thing: type) -> list[str]:
    if thing.__name__ in MEMBERS:
        return MEMBERS[thing.__name__]
    if issubclass(thing, Exception | Enum) or not thing.__module__.startswith(OUR_OWN):
        return []
    kinds = (property, classmethod, staticmethod)
    described = {attribute.split(":")[0] for attribute in ATTRIBUTES.get(thing.__name__, {})}
    return [
        name
        for name, member in _own(package, thing).items()
        if not name.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, kinds))
        and name not in described
        and NOT_FOR_APPLICATIONS.get(name) != thing.__name__
    ]


def _own(package: Package, thing: type) -> dict[str, Any]:
    """Return the members of a class, with those inherited from classes that have no list of their own."""
    if not _is_ours(thing):
        return dict(vars(thing))
    public = next((base for base in thing.__mro__[1:] if base.__name__ in package.module.__all__), object)
    own = [base for base in thing.__mro__ if base not in public.__mro__ and _is_ours(base)]
    return {name: member for base in reversed(own) for name, member in vars(base).items()}


def _member(package: Package, owner: type, name: str) -> str:
    member = inspect.getattr_static(owner, name)
    if isinstance(member, property):
        return f"  - `{name}`{_said(member)}\n"
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    said = f": {_plain(inspect.getdoc(function) or '')}" if owner is store.GroupCommitter else _said(function)
    awaited = "await " if package.module in {client, pairing} and inspect.iscoroutinefunction(function) else ""
    return f"  - `{awaited}{name}{_signature(package, function)}`{said}\n"


def _said(thing: Any) -> str:
    summary = _summary(thing)
    return f": {summary}" if summary else ""


def _signature(package: Package, function: Any) -> str:
    signature = inspect.signature(function)
    parts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = "" if parameter.default is parameter.empty else f" = {_default(package, parameter.default)}"
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        parts.append(f"{stars}{parameter.name}: {parameter.annotation}{default}")
    answer = signature.return_annotation
    return f"({', '.join(parts)})" + ("" if answer in {"None", signature.empty} else f" -> {answer}")


def _default(package: Package, value: Any) -> str:
    """Return a default as a reader would write it."""
    if inspect.isfunction(value):
        return value.__name__
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, timedelta):
        return repr(value).removeprefix("datetime.")
    if not isinstance(value, bool | int | str | bytes | tuple | None):
        named = (name for name in package.module.__all__ if getattr(package.module, name) is value)
        return next(named, f"{type(value).__name__}()")
    return repr(value)


def _summary(thing: Any) -> str:
    own = vars(thing).get("__doc__") if isinstance(thing, type) else inspect.getdoc(thing)
    text = _plain(inspect.cleandoc(own or "").split("\n\n")[0])
    # Dataclasses and named tuples have a generated docstring, which is not shown.
    return "" if text.startswith(f"{getattr(thing, '__name__', '')}(") else text


def _plain(text: str) -> str:
    """Return a docstring for a page, without the parts for readers of the code."""
    text = " ".join(text.split()).replace("``", "`")
    return text.replace(" See the module's text.", "")


# Blocks inside pages that are written by hand: between a line <!-- begin: name --> and a line <!-- end: name -->.


def with_blocks(page: Path, blocks: dict[str, Callable[[], str]]) -> str:
    """Return the page with its blocks generated again."""
    text = page.read_text(encoding="utf-8")
    for name, make in blocks.items():
        begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = f"{before}{begin}\n{make()}\n{end}{after}"
    return text


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), ["---"] * len(list(head)), *map(list, rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines).replace("| --- ", "|---").replace("--- |", "---|")


LIMITS = {
    "message_bytes": "size of a message, with header and properties",
    "large_message_bytes": "upper bound of an entity's `max_message_bytes`; 0: the entity can only lower the limit",
    "batch_bytes": "total size of the messages of one send, even if single messages may be larger",
    "header_bytes": "size of the properties of a message",
    "id_characters": "length of a message id, session id or partition key",
    "path_characters": "length of the path of a queue or topic",
    "name_characters": "length of the name of a subscription or rule",
    "entities": "queues and topics together",
    "subscriptions_per_topic": "subscriptions of a topic",
    "sql_filters_per_topic": "SQL, true and false filters of all subscriptions of a topic",
    "correlation_filters_per_topic": "correlation filters of all subscriptions of a topic",
    "rules_per_subscription": "rules of a subscription",
    "expression_characters": "length of a filter or action",
    "statements_per_action": "statements of an action",
    "rule_units": "[cost](rules.md#how-much-work-rules-may-do) of the rules for one message and all its copies",
    "authorization_rules": "keys of an entity",
    "entity_megabytes": "allowed values of `max_size_megabytes`",
    "min_lock_ms": "minimum of `lock_duration_ms`",
    "max_lock_ms": "maximum of `lock_duration_ms`",
    "max_delivery_count": "maximum of `max_delivery_count`",
    "min_time_to_live_ms": "minimum of `default_time_to_live_ms`",
    "min_duplicate_window_ms": "minimum of `duplicate_window_ms`",
    "max_duplicate_window_ms": "maximum of `duplicate_window_ms`",
    "duplicate_ids_in_memory": "message ids that all entities together keep in memory; the others are on disk",
    "min_idle_ms": "minimum of `auto_delete_on_idle_ms`",
    "messages_per_batch": "messages in a batch",
    "messages_per_transaction": "messages sent and settled in a transaction",
    "messages_per_delete": "messages that one `delete_messages` removes",
    "forwarding_hops": "successive forwards of a message",
    "forwards_per_message": "forwards that one send causes, counting all copies of the message",
    "messages_per_receive": "messages that one `receive` or `peek` returns; requests for more return this many",
    "partitions": "partitions of a partitioned entity",
}


def limits_table() -> str:
    """Return the table of the limits of each tier."""
    tiers = {"`STANDARD`": broker.STANDARD, "`PREMIUM`": broker.PREMIUM, "`RELAXED`": broker.RELAXED}
    rows = [
        [f"`{field.name}`", LIMITS[field.name], *(_shown(field.name, getattr(t, field.name)) for t in tiers.values())]
        for field in dataclasses.fields(broker.Limits)
    ]
    return _table(["limit", "applies to", *tiers], rows)


SETTINGS = {setting.name: setting.help for setting in ENTITY_SETTINGS if setting.kinds} | {
    "status": f"the status: {', '.join(f'`{status}`' for status in STATUSES)}",
    "authorization_rules": "the keys of the entity, which the server checks",
}


def settings_table() -> str:
    """Return the table of the settings of entities, with their defaults."""
    kinds = [broker.QueueDescription, broker.TopicDescription, broker.SubscriptionDescription]
    defaults = [{field.name: field.default for field in dataclasses.fields(kind)} for kind in kinds]
    assert SETTINGS.keys() == {name for found in defaults for name in found}  # noqa: S101 (the table is complete)
    fixed = {setting.name for setting in ENTITY_SETTINGS if setting.is_fixed}
    rows = [
        [
            f"`{name}`",
            meaning + ("; cannot be changed" if name in fixed else ""),
            *(_shown(name, found[name]) if name in found else "" for found in defaults),
        ]
        for name, meaning in SETTINGS.items()
    ]
    return _table(["setting", "description", "queue", "topic", "subscription"], rows)


def setting_names_table() -> str:
    """Return the table of the names of the settings of entities in each format."""
    rows = [
        [
            f"`{setting.name}`",
            f"`{setting.field}`",
            f"`{setting.element}`",
            f"`{setting.option}`" if setting.option else "",
            f"`{setting.key}`",
            f"`{setting.emulator_key}`" if setting.emulator_key else "",
            "no" if setting.is_fixed else "yes",
        ]
        for setting in ENTITY_SETTINGS
        if setting.kinds
    ]
    head = [
        "broker",
        "client",
        "management API",
        "`pairbus entities`",
        "settings file",
        "`Config.json`",
        "can be changed",
    ]
    return _table(head, rows)


TIMES = [("day", broker_limits.DAY_MS), ("min", broker_limits.MINUTE_MS), ("s", broker_limits.SECOND_MS)]
SIZES = [("MB", broker_limits.MEGABYTE), ("KB", broker_limits.KILOBYTE)]


def _shown(name: str, value: Any) -> str:
    """Return a limit or a default with its unit."""
    match value:
        case None:
            return "never" if name.endswith("_ms") else "none"
        case bool():
            return "yes" if value else "no"
        case Enum():
            return f"`{value.value}`"
        case "" | ():
            return "any" if name == "entity_megabytes" else "empty"
        case tuple():
            return ", ".join(map(str, value))
        case broker_limits.UNLIMITED:
            return "no limit"
        case int() if value and name.endswith("_ms"):
            return _in_units(value, TIMES, "ms")
        case int() if value and name.endswith("_bytes"):
            return _in_units(value, SIZES, "B")
    return f"{value:,}"


def _in_units(value: int, units: list[tuple[str, int]], smallest: str) -> str:
    for unit, size in units:
        if value % size == 0:
            count = value // size
            return f"{count:,} {unit}{'s' if unit == 'day' and count > 1 else ''}"
    return f"{value:,} {smallest}"


def errors_table(module: ModuleType, root: type[Exception]) -> str:
    """Return every error of a family, as a tree."""
    found = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, root)]
    rows = []
    for kind in found:
        base = kind.__base__
        parent = "" if kind is root or base is None else f"`{base.__name__}`"
        rows.append([f"`{kind.__name__}`", parent, _summary(kind)])
    return _table(["error", "base class", "description"], rows)


def keys_table() -> str:
    """Return the table of the layout of keys, from the docstring of ``keys``."""
    lines = (keys.__doc__ or "").splitlines()
    marks = [number for number, line in enumerate(lines) if line.startswith("====")]
    widths = [len(mark) + 2 for mark in lines[marks[0]].split("  ")]
    rows = []
    for line in lines[marks[1] + 1 : marks[2]]:
        cells = [line[: widths[0]], line[widths[0] : widths[0] + widths[1]], line[widths[0] + widths[1] :]]
        rows.append([cell.strip().replace("``", "`") for cell in cells])
    return _table(["first byte", "rest of the key", "value"], rows)


# Spark.

SPARK_PAGE = """# Options and columns on Spark

The options of `spark.readStream.format("pairbus")`, `spark.read`, `writeStream` and `write`, and the columns that they
read and write. Generated from the code by `docs/generate.py`. [How to read and write with
Spark](../how-to/read-and-write-with-spark.md) has examples. Option names are case-insensitive. Unknown options are
rejected; the error names the most similar option.

## Options for reading

{source}
## Options for writing

{sink}
## Columns

The columns of a query that reads without a schema of its own. All of them are nullable, except `entity` and
`sequence_number`. The last column of the table lists the types that a query may write; a query may contain the other
columns as well, and the sink ignores them.

{columns}
These columns are available with `.schema(…)`, which accepts any subset of all columns, in any order:

{extra}
## Application properties as text

Application properties are read as a map of text, because AMQP has more types than a Spark map can hold:

{text}
Read `payload` if you need the types. A query that writes may use a map or a struct, with values of these types:

{properties}
## Settings of the syphon

The settings of `SparkSyphonSettings` in `pairbus.jobs.syphon.settings`, in addition to [those of every
syphon](pairing.md#options). [How to syphon on Spark](../how-to/syphon-on-spark.md) has examples.

{syphon}"""

COLUMNS = {
    "entity": "the queue or subscription that the message was read from, or the queue or topic to send it to",
    "sequence_number": "the sequence number; -1 if it cannot be read",
    "enqueued_time": "when the message was enqueued",
    "body": "the body as bytes",
    "body_kind": "the type of the body: `data`, `value` or `sequence`",
    "message_id": "",
    "session_id": "",
    "correlation_id": "",
    "label": "the subject",
    "content_type": "",
    "to": "",
    "reply_to": "",
    "reply_to_session_id": "",
    "partition_key": "",
    "via_partition_key": "",
    "time_to_live_ms": "in milliseconds",
    "expires_at": "when the time to live ends",
    "scheduled_enqueue_time": "when the message is, or was, to be enqueued",
    "delivery_count": "the number of earlier deliveries",
    "state": "`active`, `deferred` or `scheduled`",
    "enqueued_sequence_number": "the sequence number in the first entity, if the message was forwarded",
    "partition_id": "the partition of a partitioned entity",
    "dead_letter_source": "the entity that dead-lettered the message",
    "dead_letter_reason": "the dead-letter reason",
    "dead_letter_error_description": "the description of the dead-letter reason",
    "application_properties": "read [as text](#application-properties-as-text)",
    "payload": "the encoded AMQP message, with all types; sent unchanged, instead of a body and properties",
    "lock_token": "lock token, in consuming streams",
    "headers": "the application properties with their types; also with the option `includeHeaders`",
}


def spark_page() -> str:
    """Return the page of the options and columns of queries."""
    return SPARK_PAGE.format(
        source=_options_table(SOURCE_OPTIONS),
        sink=_options_table(SINK_OPTIONS),
        columns=_columns_table(spark_schema.MESSAGE_SCHEMA),
        extra=_columns_table(spark_schema.EXTRA_SCHEMA),
        text=_doc_table(value_text, ["AMQP", "text"]),
        properties=_properties_table(),
        syphon=_syphon_table(),
    )


def _options_table(options: Iterable[Option]) -> str:
    rows = [
        [
            f"`{option.name}`",
            "required" if option.required else "" if option.default is None else f"`{option.default}`",
            option.form.text.replace("*", "\\*"),
            option.doc,
        ]
        for option in options
    ]
    return _table(["option", "default", "value", "description"], rows)


def _columns_table(columns: Any) -> str:
    rows = [
        [f"`{one.name}`", f"`{one.dataType.simpleString()}`", COLUMNS[one.name], _written_as(one.name)]
        for one in columns
    ]
    return _table(["column", "type", "description", "can be written as"], rows)


def _written_as(column: str) -> str:
    return " or ".join(f"`{_sql_name(kind)}`" for kind in outgoing.WRITTEN.get(column, {}))


def _sql_name(kind: Any) -> str:
    names = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
    name: str = kind.typeName()
    return names.get(name, name)


PROPERTY_TYPES = {
    "binary": "binary", "boolean": "boolean", "tinyint": "byte", "decimal": "decimal128", "double": "double",
    "float": "float", "int": "int", "bigint": "long", "void": "nothing", "smallint": "short", "string": "string",
    "timestamp": "timestamp",
}  # fmt: skip


def _properties_table() -> str:
    kinds = outgoing._TYPED  # noqa: SLF001 (it is what decides)
    rows = [[f"`{_sql_name(kind)}`", PROPERTY_TYPES[_sql_name(kind)]] for kind in kinds]
    return _table(["Spark type", "AMQP type"], sorted(rows))


def _doc_table(module: ModuleType, head: list[str]) -> str:
    """Return a table of the docstring of a module."""
    lines = (module.__doc__ or "").splitlines()
    first, last = (number for number, line in enumerate(lines) if line.startswith("===="))
    width = lines[first].index(" ")
    rows = [[line[:width].strip(), line[width:].strip().replace("``", "`")] for line in lines[first + 1 : last]]
    return _table(head, rows)


def _syphon_table() -> str:
    texts = _field_texts(SparkSyphonSettings)
    usual = SparkSyphonSettings()
    rows = []
    text = ""
    for name in reversed(_fields(SparkSyphonSettings)):
        text = texts.get(name, text)  # a text below two fields describes both
        rows.append([f"`{name}`", f"`{getattr(usual, name)!r}`", text])
    return _table(["setting", "default", "description"], reversed(rows))


# Commands.

CLI_HEAD = """# Commands

All commands with their arguments and options, as in `pairbus COMMAND --help`. Generated from the code by
`docs/generate.py`. The column *variable* names the environment variable that sets an option if the command line does
not. [Everyday commands](../how-to/everyday-commands.md) has examples.
"""

CLI_LINES = """
## Messages as lines

`receive` and `peek` write messages with `--lines` and `--json`, and `send --lines` reads them: one JSON object per
line. `send` sends these keys; `receive` and `peek` write those that the message has:

{sent}
`receive` and `peek` also write these keys, which `send` ignores:

{read_only}
Integers are written in full. Sequence numbers of partitioned entities exceed 2^53, so parsers that use doubles lose
digits.

JSON has fewer types than AMQP. In `application_properties`, in ids, and in bodies that are AMQP values, types are
written like this:

{types}"""

LINE_NAMES = {
    "body": "the body: text if it is UTF-8, a list of one value if it is an AMQP value, a list if it is an AMQP"
    " sequence; other JSON is sent as JSON text",
    "body_base64": "the body in base64, if it is not text",
    "body_kind": "`value` or `sequence`, if the body is not bytes",
    "message_id": "generated if absent",
    "correlation_id": "",
    "session_id": "",
    "partition_key": "",
    "via_partition_key": "",
    "label": "the subject",
    "content_type": "",
    "to": "",
    "reply_to": "",
    "reply_to_session_id": "",
    "time_to_live_ms": "in milliseconds, counted from the send",
    "scheduled_enqueue_time": "when to enqueue the message; a time in the past means now",
    "application_properties": "an object with a value for each name, without the dead-letter properties",
    "amqp": "the AMQP fields that Service Bus does not use, if they differ from their defaults: "
    + ", ".join(f"`{field.name}`" for field in dataclasses.fields(client.AmqpView)),
}


def cli_page() -> str:
    """Return the page that lists the commands."""
    found = "".join(_command_text(path, command) for path, command in _commands(typer.main.get_command(commands)))
    return CLI_HEAD + found + _lines_text()


def _commands(command: Any, path: str = "pairbus") -> Iterable[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, f"{path} {name}")


def _command_text(path: str, command: Any) -> str:
    paragraphs = [" ".join(part.split()) for part in inspect.cleandoc(command.help or "").split("\n\n")]
    examples = [part.removeprefix("Example: ") for part in paragraphs if part.startswith("Example: ")]
    text = [_escaped(part) for part in paragraphs if not part.startswith("Example: ")]
    shown = "\n".join(["```console", *(f"$ {example}" for example in examples), "```"])
    rows = [_parameter_row(parameter) for parameter in command.params if not parameter.hidden]
    table = _table(["option", "value", "default", "variable", "description"], rows) if rows else ""
    return "\n\n".join([f"\n## `{path}`", *text, shown, table]).rstrip("\n") + "\n"


def _parameter_row(parameter: Any) -> list[str]:
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.metavar]
    kind = type(parameter.default)
    value = "\\|".join(one.value for one in kind) if _is_enumeration(kind) else parameter.metavar or ""
    return [
        ", ".join(f"`{name}`" for name in names),
        f"`{value}`" if value and is_option else "",
        "required" if parameter.required else _shown_default(parameter),
        f"`{parameter.envvar}`" if parameter.envvar else "",
        _escaped(parameter.help or "")
        + ("; may be repeated" * (parameter.multiple and "repeated" not in parameter.help)),
    ]


def _shown_default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return f"`{parameter.show_default}`"
    default = parameter.default
    if not parameter.show_default or default is None or isinstance(default, bool):
        return ""
    return f"`{default.value if isinstance(default, Enum) else default}`"


def _escaped(text: str) -> str:
    return text.replace("*", "\\*").replace("|", "\\|").replace("_", "\\_").replace("<", "\\<")


def _lines_text() -> str:
    return CLI_LINES.format(
        sent=_table(["key", "description"], [[f"`{name}`", LINE_NAMES[name]] for name in message_lines.SENT]),
        read_only=", ".join(f"`{name}`" for name in message_lines.READ_ONLY) + ".\n",
        types=_doc_table(amqp_json, ["AMQP", "JSON"]),
    )


# Metrics.

METRICS_PAGE = """# Metrics

All metrics of servers and pairs, in the text format of Prometheus. Generated from the code by `docs/generate.py`. The
name of a counter ends in `_total`; a summary has `_count` and `_sum`, a histogram also `_bucket`.

## Of a namespace

`pairbus serve` returns these for `GET /metrics`. [How to operate](../how-to/operate.md#watch-a-server) lists when to
alert.

{server}
These name entities, so they require the claim *Manage* or *Listen* on the namespace, unless the setting
`open_metrics` is on. The counters start at 0 when the server starts, for at most `max_entity_metrics` entities and
dead-letter queues; all others, and deleted ones, are counted together as `other`:

{entities}
## Of a pair

`NamespacePair.metrics()` returns these, in the process of the application. [How to watch a
pair](../how-to/watch-a-pair.md#metrics) shows how to export them, and lists when to alert. The metrics of the syphon
are present if a syphon runs in the process, `pairbus_pair_backlog_messages` if the secondary reports it.

{pair}"""

_SAMPLE_PAIR = pairing.PairStatus(
    primary="sb://contoso",
    secondary="sb://fabrikam",
    entities=(
        pairing.PairedEntityStatus(
            path="orders",
            state=pairing.EntityState.HEALTHY,
            since=datetime.fromtimestamp(0, UTC),
            cause=None,
            failures=0,
            diverted=0,
            pings=0,
        ),
    ),
    backlog_queues=(pairing.BacklogQueueStatus(path="backlog", is_used=True, cause=None, diverted=0),),
    syphon=pairing.SyphonStatus(
        engine="in-process",
        receives=0,
        syphoned=0,
        dead_lettered=0,
        waiting={"orders": client.MessagingError("it is down")},
        guarantees={
            "orders": pairing.DestinationGuarantee(guarantee=pairing.DeliveryGuarantee.AT_LEAST_ONCE),
        },
    ),
)


_SAMPLE_LEDGER = LedgerStatus(
    operations_written=0, events_written=0, events_waiting=0, events_missed=0, files_closed=0, error=None
)


def metrics_page() -> str:
    """Return the page of the metrics."""
    metrics = Metrics(Counters())
    traffic = Traffic(Counters(), None)
    counted = [
        *traffic.collect(),
        *StorageMetrics(StorageReading).collect(),
        *StorageStateMetrics(StorageState()).collect(),
        *FaultMetrics({}).collect(),
        *AuditMetrics(AuditLog()).collect(),
        *UnprovenConnectionMetrics(UnprovenConnections(), (), AddressLimit(), LoginLimiter()).collect(),
        *_component_metrics(),
        *LedgerMetrics(lambda: _SAMPLE_LEDGER).collect(),
        *SideBufferMetrics(BufferCounts()).collect(),
        *TotalMetrics([]).collect(),
    ]
    over_http = [
        _metric_row(family, getattr(meter, "_labelnames", ()))
        for meter in (metrics.http, metrics.http_seconds)
        for family in meter.collect()
    ]
    pair = text_string_to_metric_families(_SAMPLE_PAIR.metrics({"backlog": 0}))
    return METRICS_PAGE.format(
        server=_metrics_table([*(_metric_row(each, getattr(each, "_labelnames", ())) for each in counted), *over_http]),
        entities=_metrics_table(
            _metric_row(each, getattr(each, "_labelnames", ()))
            for each in (*EntityMetrics([]).collect(), *EntityTrafficMetrics(EntityTraffic(), {}).collect())
        ),
        pair=_metrics_table(_metric_row(each, each.samples[0].labels) for each in pair),
    )


def _metrics_table(rows: Iterable[list[str]]) -> str:
    return _table(["metric", "type", "labels", "description"], rows)


def _component_metrics() -> Iterable[Metric]:
    loop = asyncio.new_event_loop()
    supervisor = Supervisor(loop.time)
    try:
        return [*ComponentMetrics(supervisor, LoopWatchdog(loop, supervisor)).collect()]
    finally:
        loop.close()


def _metric_row(family: Metric, labels: Iterable[str]) -> list[str]:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return [f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation]


# Errors.

ALL_ERRORS_HEAD = """# Errors of all packages

Every error that pairbus raises, by package. Generated from the code by `docs/generate.py`. Applications handle those
of the [client](errors.md), which are listed there with the action to take. If you embed a namespace, you handle those
of the [broker](broker.md#errors) and the [store](../explanation/disk-layout.md#errors-of-the-store).
"""


def all_errors_page() -> str:
    """Return the page of every error."""
    packages: dict[str, list[type[Exception]]] = {}
    for kind in _all_errors():
        packages.setdefault(kind.__module__.split(".")[1], []).append(kind)
    head = ["error", "base class", "module", "description"]
    return ALL_ERRORS_HEAD + "".join(
        f"\n## `pairbus.{package}`\n\n{_table(head, map(_error_row, kinds))}"
        for package, kinds in sorted(packages.items())
    )


def _all_errors() -> Iterator[type[Exception]]:
    for module in pkgutil.walk_packages(pairbus.__path__, "pairbus."):
        if not module.name.endswith("__main__"):
            for name, kind in vars(importlib.import_module(module.name)).items():
                if _is_error(kind) and kind.__module__ == module.name and not name.startswith("_"):
                    yield kind


def faults_table() -> str:
    """The kinds of faults, with where each can be injected."""
    lines = ["| kind | effect | where |", "|---|---|---|"]
    for kind, rule in FAULT_RULES.items():
        needs = f"; needs `{rule.requires}`" if rule.requires else ""
        where = ", ".join(scope.value for scope in rule.scopes)
        lines.append(f"| `{kind}` | {rule.summary}{needs} | {where} |")
    return "\n".join(lines) + "\n"


def _error_row(kind: type[Exception]) -> list[str]:
    bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
    where = kind.__module__.removeprefix("pairbus.")
    return [f"`{kind.__name__}`", bases, f"`{where}`", _escaped(_summary(kind))]


BLOCKS: dict[Path, dict[str, Callable[[], str]]] = {
    REFERENCE / "broker.md": {
        "errors": partial(errors_table, broker_errors, broker.BrokerError),
        "limits": limits_table,
        "settings": settings_table,
        "setting names": setting_names_table,
    },
    REFERENCE / "settings.md": {"settings": server_settings.settings_table},
    DOCS / "how-to" / "practise-an-outage.md": {"faults": faults_table},
    EXPLANATION / "disk-layout.md": {
        "keys": keys_table,
        "errors": partial(errors_table, store_errors, store.StoreError),
    },
}

PAGES: dict[Path, Callable[[], str]] = {
    REFERENCE / "states.md": states_page,
    REFERENCE / "api-wire.md": partial(api_page, WIRE),
    REFERENCE / "api-broker.md": partial(api_page, BROKER),
    REFERENCE / "api-store.md": partial(api_page, STORE),
    REFERENCE / "api-server.md": partial(api_page, SERVER),
    REFERENCE / "api-testing.md": partial(api_page, TESTING),
    REFERENCE / "api-client.md": partial(api_page, CLIENT),
    REFERENCE / "api-pairing.md": partial(api_page, PAIRING),
    REFERENCE / "api-blocking.md": partial(api_page, BLOCKING),
    REFERENCE / "spark-options.md": spark_page,
    REFERENCE / "cli.md": cli_page,
    REFERENCE / "metrics.md": metrics_page,
    REFERENCE / "all-errors.md": all_errors_page,
    **{page: partial(with_blocks, page, blocks) for page, blocks in BLOCKS.items()},
}


def main() -> int:
    """Write all pages; with ``--check``, only name those that would change, and return 1 if there are any."""
    made = {path: make() for path, make in PAGES.items()}
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"stale: {path.relative_to(DOCS.parent)}; run: python docs/generate.py")
        return 1 if stale else 0
    for path in stale:
        path.write_text(made[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
