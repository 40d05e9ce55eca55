"""`pairbus serve` in a separate process, stopped as an operator stops it, and `pairbus trust`."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from azure.servicebus import ServiceBusMessage, TransportType
from typer.testing import CliRunner

from pairbus.broker import Address
from pairbus.cli.main import app
from pairbus.dialect.connection_string import ConnectionString, parse_connection_string
from pairbus.server.settings import SETTINGS, load_settings
from pairbus.store.certificate import certificate_files, open_certificate
from pairbus.testing import running_namespace
from tests.docs.snippets import ROOT, run_snippets

PAIRBUS = [sys.executable, "-m", "pairbus.cli.main"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}
PATIENCE_S = 120
"""Generous, because the tests may share the processors with much else."""

PAGE = ROOT / "docs" / "how-to" / "serve.md"


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    command = [*PAIRBUS, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=ENVIRONMENT | environment
    )


class Served:
    """A namespace in a separate process that has printed its addresses."""

    def __init__(self, process: subprocess.Popen[str], said: list[str]) -> None:
        self.process = process
        self.said = said

    @property
    def text(self) -> str:
        """The connection string."""
        return self.said[-1]

    @property
    def connection(self) -> ConnectionString:
        return parse_connection_string(self.text)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Return its exit code and standard error."""
        self.process.send_signal(number)
        _, complaints = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, complaints


@contextmanager
def serving(data: Path, *arguments: object) -> Iterator[Served]:
    command = [*PAIRBUS, "serve", "--data", str(data), "--port", "0", *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT) as process:
        try:
            assert process.stdout is not None
            said = lines_until_endpoint(process.stdout)
            assert said, process.communicate(timeout=PATIENCE_S)[1]
            yield Served(process, said)
        finally:
            process.kill()


def lines_until_endpoint(output: IO[str]) -> list[str]:
    said = []
    for line in output:
        said.append(line.strip())
        if line.startswith("Endpoint="):
            return said
    return []


def reason(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that a failed command prints."""
    (line,) = done.stderr.splitlines()
    assert line.startswith("pairbus: ")
    return line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_serve_prints_its_addresses_and_stops_on_signal(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "contoso", "--name", "contoso") as served:
        assert "namespace: contoso" in served.said
        assert f"ports: {served.connection.port}" in served.said
        assert served.connection.key_name == "RootManageSharedAccessKey"
        with socket.create_connection(("127.0.0.1", served.connection.port or 0), timeout=PATIENCE_S):
            pass
        code, complaints = served.stop(number)
    assert (code, "Traceback" in complaints) == (0, False), complaints


def test_root_key_survives_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        first = served.connection.key
        served.stop()
    with serving(tmp_path / "data") as served:
        assert served.connection.key == first


def test_serve_uses_tls_with_the_certificate_printed_by_trust(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        named = run("trust", "--data", tmp_path / "data").stdout.splitlines()[0]
        context = ssl.create_default_context(cafile=named)
        address = ("127.0.0.1", served.connection.port or 0)
        plain = socket.create_connection(address, timeout=PATIENCE_S)
        with context.wrap_socket(plain, server_hostname="localhost") as encrypted:
            assert encrypted.version() in {"TLSv1.2", "TLSv1.3"}


@pytest.mark.slow
def test_trust_before_the_first_serve_creates_the_authority(tmp_path: Path) -> None:
    data = tmp_path / "data"
    mistyped = run("trust", "--data", data)
    assert mistyped.returncode == 1
    assert "does not exist; create it with" in mistyped.stderr
    assert not data.exists()
    data.mkdir()
    done = run("trust", "--data", data)
    assert done.returncode == 0, done.stderr
    ca_file = certificate_files(data).ca_file
    before = ca_file.read_bytes()
    for word in (
        str(ca_file),
        f"commands       export SSL_CERT_FILE={ca_file}",
        "connection_verify=",
        "REQUESTS_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        ".NET",
        "--cacert",
    ):
        assert word in done.stdout
    with serving(data):
        assert ca_file.read_bytes() == before


@pytest.mark.timeout(300)
def test_commands_of_the_serve_page_work(tmp_path: Path) -> None:
    page = run_snippets(PAGE)
    config = tmp_path / "pairbus.toml"
    config.write_text(blocks_of(PAGE, "toml")[0], encoding="utf-8")
    with serving(tmp_path / "data", "--config", config) as served:
        ca_file = str(certificate_files(tmp_path / "data").ca_file)
        page["send_one"](served.text)
        assert page["receive_one"](served.text) == "one espresso"
        page["make_queue"](served.text, ca_file, "more")
        assert {"orders", "more"} <= set(page["names_of_queues"](served.text, ca_file))
        assert served.stop()[0] == 0


def test_settings_files_of_the_serve_page_are_valid(tmp_path: Path) -> None:
    for language, name in (("toml", "pairbus.toml"), ("json", "Config.json")):
        for number, text in enumerate(blocks_of(PAGE, language)):
            file = tmp_path / f"{number}-{name}"
            file.write_text(text, encoding="utf-8")
            assert load_settings({"data": "d"}, {}, file).entities.queues


def blocks_of(page: Path, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert found
    return found


@pytest.mark.slow
def test_json_log_format_writes_json_lines(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--log-format", "json", "--log-level", "debug") as served:
        code, complaints = served.stop()
    assert code == 0
    for line in complaints.splitlines():
        assert {"time", "level", "logger", "message"} <= json.loads(line).keys()


@pytest.mark.slow
def test_allow_any_jwt_prints_a_warning(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--allow-any-jwt") as served:
        code, complaints = served.stop()
    assert (code, "WARNING" in complaints) == (0, True)


@pytest.mark.parametrize(("key", "is_short"), [("short", True), ("k" * 44, False)], ids=["short", "long"])
def test_short_root_key_prints_a_warning(tmp_path: Path, key: str, is_short: bool) -> None:
    with serving(tmp_path / "data", "--key", key) as served:
        code, complaints = served.stop()
    assert (code, "WARNING: the root key has 5 characters" in complaints) == (0, is_short)


def test_terminal_output_does_not_wrap_the_connection_string(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*PAIRBUS, "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    environment = ENVIRONMENT | {"COLUMNS": "20", "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        try:
            shown = ""
            while not re.search(r"Endpoint=.*\n", shown):
                shown += re.sub(r"\x1b\[[0-9;]*m", "", os.read(ours, 4096).decode())
            (line,) = re.findall(r"^Endpoint=.*$", shown, re.MULTILINE)
            assert parse_connection_string(line).key
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            os.close(ours)


# Errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no data directory is set"),
        (["--data", "d", "--name", "two words"], "letters, digits and hyphens"),
        (["--data", "d", "--tls-cert", "c.pem"], "must be set together"),
        (
            ["--data", "d", "--config", "nowhere.toml"],
            "--config nowhere.toml cannot be read: No such file",
        ),
        (
            ["--data", "d", "--connection-file", "nonexistent/x.txt"],
            "--connection-file nonexistent/x.txt cannot be written: nonexistent is not a directory; create it",
        ),
        (["--data", "d", "--connection-file", "/"], "--connection-file / is a directory; name a file"),
    ],
    ids=["no data", "bad name", "half a certificate", "no file", "no directory", "a directory"],
)
def test_invalid_settings_print_one_line_and_exit_with_2(arguments: list[str], said: str) -> None:
    done = run("serve", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in reason(done)
    assert not Path("d").exists()


def test_setting_out_of_range_is_named_as_in_the_file_and_creates_nothing(tmp_path: Path) -> None:
    config, data = tmp_path / "pairbus.toml", tmp_path / "data"
    config.write_text('[[queues]]\nname = "a"\nlock_duration = "1h"\n', encoding="utf-8")
    done = run("serve", "--data", data, "--config", config)
    assert (done.returncode, data.exists()) == (2, False)
    assert reason(done) == (
        f"pairbus: {config}: queue 'a' cannot be applied as declared: lock_duration must be from 5s to 5m, got 1h"
    )


def test_short_keys_of_the_settings_file_print_warnings(tmp_path: Path) -> None:
    config = tmp_path / "pairbus.toml"
    key = 'rights = ["send"]\nprimary_key = '
    config.write_text(
        f'[[keys]]\nname = "all"\n{key}"{"k" * 31}"\n[[keys]]\nname = "long"\n{key}"{"k" * 32}"\n'
        f'[[queues]]\nname = "a"\n[[queues.keys]]\nname = "shop"\n{key}"{"k" * 44}"\nsecondary_key = "s"\n',
        encoding="utf-8",
    )
    with serving(tmp_path / "data", "--config", config) as served:
        code, complaints = served.stop()
    assert code == 0
    warnings = [line for line in complaints.splitlines() if "WARNING: the key" in line]
    assert warnings == [
        "pairbus: WARNING: the key 'all' of the namespace has 31 characters and may be guessed: use at least 32",
        "pairbus: WARNING: the key 'shop' of queue 'a' has 1 characters and may be guessed: use at least 32",
    ]


def test_invalid_variable_prints_one_line_and_exits_with_2(tmp_path: Path) -> None:
    done = run("serve", "--data", tmp_path / "data", PAIRBUS_SERVE_PROT="1")
    assert done.returncode == 2
    assert "did you mean 'PAIRBUS_SERVE_PORT'?" in reason(done)


def test_unknown_option_exits_with_2(tmp_path: Path) -> None:
    done = run("serve", "--data", tmp_path / "data", "--prot", 1)
    assert done.returncode == 2
    assert "--port" in done.stderr


@pytest.mark.slow
def test_invalid_declaration_prints_one_line_and_exits_with_2(tmp_path: Path) -> None:
    config = tmp_path / "pairbus.toml"
    config.write_text('port = 0\n[[queues]]\nname = "q"\nforward_to = "nowhere"\n', encoding="utf-8")
    done = run("serve", "--data", tmp_path / "data", "--config", config, "--log-level", "error")
    assert done.returncode == 2
    assert "cannot forward to 'nowhere'" in reason(done)


def test_port_in_use_prints_one_line_and_exits_with_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("serve", "--data", tmp_path / "data", "--port", port, "--log-level", "error")
    assert done.returncode == 1
    assert f"port {port}: " in reason(done)
    assert "; choose another with --port, or 0 for any free port" in reason(done)
    assert not (tmp_path / "data").exists()


def test_data_directory_in_use_prints_one_line_and_exits_with_1(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        done = run("serve", "--data", tmp_path / "data", "--port", 0, "--log-level", "error")
        assert done.returncode == 1
        assert f"in use by process {served.process.pid}" in reason(done)


@pytest.mark.parametrize("command", ["serve", "trust"])
def test_foreign_directory_prints_one_line_and_exits_with_1(tmp_path: Path, command: str) -> None:
    (tmp_path / "letter.txt").write_text("dear", encoding="utf-8")
    done = run(command, "--data", tmp_path)
    assert done.returncode == 1
    assert "data directory of pairbus: it contains" in reason(done)
    assert ("Use an empty or a new directory" in reason(done)) == (command == "serve")
    assert os.listdir(tmp_path) == ["letter.txt"]


def test_missing_dependency_names_the_extra_to_install() -> None:
    code = "import sys; sys.modules['lmdb'] = None; from pairbus.cli.main import app; app(['serve'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert "pip install '.[server]'" in reason(done)


STUBBORN = """
import asyncio
from pairbus.cli.serve import _stop_on_signals

async def main():
    stopped = _stop_on_signals()
    print("ready", flush=True)
    await stopped.wait()
    print("stopping", flush=True)
    await asyncio.Event().wait()

with asyncio.Runner(loop_factory=LOOP) as runner:
    runner.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(
    "loop", ["asyncio.new_event_loop", "__import__('uvloop').new_event_loop"], ids=["asyncio", "uvloop"]
)
def test_second_signal_stops_at_once(loop: str, number: signal.Signals) -> None:
    if "uvloop" in loop:
        pytest.importorskip("uvloop")
    command = [sys.executable, "-c", STUBBORN.replace("LOOP", loop)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == -number


# The options


def test_every_setting_has_an_option() -> None:
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    for setting in SETTINGS.values():
        assert setting.option in shown
    assert "--config" in shown


def test_pairbus_lists_its_commands() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    for command in ("serve", "trust", "demo"):
        assert command in shown


def test_deny_example_of_the_serve_page_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = run_snippets(PAGE)

    async def scene() -> None:
        stopped = asyncio.Event()
        stopped.set()
        await page["serve_until"](stopped, tmp_path / "data")

    asyncio.run(scene())
    assert capsys.readouterr().out.startswith("Endpoint=sb://localhost:")
    assert page["deny_some"]("send", Address.of("reports")) is not None
    assert page["deny_some"]("send", Address.of("orders")) is None


def test_security_example_of_the_serve_page_works(tmp_path: Path) -> None:
    page = run_snippets(PAGE)
    with running_namespace(queues=["orders"]) as contoso:
        for transport_type in (TransportType.Amqp, TransportType.AmqpOverWebsocket):
            client = page["secure_client"](contoso.connection_string, str(contoso.ca_file), transport_type)
            with client, client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("one espresso"))


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        ("missing.pem", "key.pem", "tls_cert: "),
        ("cert.pem", "missing.pem", "tls_key: "),
        ("cert.pem", "key.pem", "are not a certificate and its key in PEM"),
    ],
    ids=["no certificate", "no key", "neither is one"],
)
def test_invalid_certificate_prints_one_line_and_exits_with_2(tmp_path: Path, cert: str, key: str, said: str) -> None:
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("nothing of the kind")
    options = ("--tls-cert", tmp_path / cert, "--tls-key", tmp_path / key)
    done = run("serve", "--data", tmp_path / "data", "--port", 0, *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_rejected_declaration_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[[queues]]\nname = "good"\n\n[[queues]]\nname = "bad"\nlock_duration = "10m"\n')
    done = run("serve", "--config", file, "--data", tmp_path / "data", "--port", 0)
    assert done.returncode == 2
    assert "queue 'bad'" in done.stderr
    with running_namespace(data=tmp_path / "data") as contoso:
        assert contoso.call(lambda host: host.use_namespace().queues(host.now_ms())) == []


def test_version_option_prints_the_version_and_the_build() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pairbus", "--version"], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert re.fullmatch(r"pairbus \d+\.\d+\.\d+ \((compiled|plain Python)\)\n", done.stdout)


def test_serve_uses_the_certificate_of_the_operator(tmp_path: Path) -> None:
    """Create a certificate elsewhere, for another name."""
    made = open_certificate(tmp_path, ["bus.example"], time.time_ns() // 1_000_000)
    options = ("--tls-cert", made.cert_file, "--tls-key", made.key_file)
    with serving(tmp_path / "data", *options) as served:
        plain = socket.create_connection(("127.0.0.1", served.connection.port or 0), timeout=PATIENCE_S)
        context = ssl.create_default_context(cafile=made.ca_file)
        with context.wrap_socket(plain, server_hostname="bus.example") as encrypted:
            encrypted.sendall(b"GET /health HTTP/1.1\r\nHost: bus.example\r\nConnection: close\r\n\r\n")
            assert encrypted.recv(64).startswith(b"HTTP/1.1 200")
        assert not (tmp_path / "data" / "tls").exists()


@pytest.mark.slow
def test_two_namespaces_run_on_separate_ports(tmp_path: Path) -> None:
    with serving(tmp_path / "a", "--name", "a", "--port", 0) as one, serving(tmp_path / "b", "--name", "b") as other:
        assert one.connection.key != other.connection.key
        ports = [int(port) for line in one.said if line.startswith("ports: ") for port in line[7:].split(", ")]
        assert len(ports) == 2  # each of the two requested ports
        for port, name in ((ports[0], b"a"), (ports[1], b"a"), (other.connection.port or 0, b"b")):
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as stream:
                stream.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer = b"".join(iter(lambda: stream.recv(4_096), b""))
                assert b'"name":"' + name + b'"' in answer
