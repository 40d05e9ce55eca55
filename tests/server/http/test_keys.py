"""The keys to the namespace over HTTP."""

from __future__ import annotations

from pairbus.dialect.atom import AUTHORIZATION_RULE
from tests.server.http.site import ROOT, Site, basic

KEYS = "/$AuthorizationRules"


def key(*rights: str, primary: str = "", secondary: str = "") -> str:
    granted = "".join(f"<AccessRights>{right}</AccessRights>" for right in rights)
    keys = "".join(
        f"<{name}>{text}</{name}>" for name, text in (("PrimaryKey", primary), ("SecondaryKey", secondary)) if text
    )
    return f"<SharedAccessAuthorizationRule><Rights>{granted}</Rights>{keys}</SharedAccessAuthorizationRule>"


def test_keys_are_listed(site: Site) -> None:
    entries = site.get(KEYS + "/").feed(AUTHORIZATION_RULE).entries
    assert [entry.values["name"] for entry in entries] == [ROOT.name, "sender", "listener"]
    assert entries[0].values["rights"] == ("Manage", "Send", "Listen")
    assert entries[0].values["primary_key"] == ROOT.primary_key


def test_new_key_is_accepted_and_a_deleted_one_refused(site: Site) -> None:
    created = site.put(f"{KEYS}/ops", key("Manage", primary="p", secondary="s"))
    assert created.status == 201
    assert site.get(f"{KEYS}/OPS").body == created.body
    for text in ("p", "s"):
        assert site.get(KEYS, authorization=basic("ops", text)).status == 200
    assert site.delete(f"{KEYS}/ops").status == 200
    assert site.get(KEYS, authorization=basic("ops", "p")).status == 401
    assert site.get(f"{KEYS}/ops").status == 404
    assert site.delete(f"{KEYS}/ops").status == 404


def test_omitted_key_is_generated_and_kept(site: Site) -> None:
    made = site.put(f"{KEYS}/ops", key("Send")).entry(AUTHORIZATION_RULE).values
    assert len(made["primary_key"]) == 44
    assert site.put(f"{KEYS}/ops", key("Send")).status == 409
    assert site.update(f"{KEYS}/none", key("Send")).status == 404
    changed = site.update(f"{KEYS}/ops", key("Send", "Listen", secondary="s"))
    assert changed.status == 200
    values = changed.entry(AUTHORIZATION_RULE).values
    assert (values["rights"], values["primary_key"], values["secondary_key"]) == (
        ("Send", "Listen"),
        made["primary_key"],
        "s",
    )


def test_versions(site: Site) -> None:
    tag = site.get(f"{KEYS}/sender").headers["etag"]
    assert site.update(f"{KEYS}/sender", key("Listen"), tag).status == 200
    assert site.update(f"{KEYS}/sender", key("Listen"), tag).status == 412
    assert site.delete(f"{KEYS}/sender", headers={"If-Match": tag}).status == 412


def test_last_key_with_the_manage_right_cannot_be_deleted(site: Site) -> None:
    assert site.delete(f"{KEYS}/{ROOT.name}").status == 400
    assert site.update(f"{KEYS}/{ROOT.name}", key("Send")).status == 400
    assert site.get(f"{KEYS}/{ROOT.name}").entry(AUTHORIZATION_RULE).values["rights"] == ("Manage", "Send", "Listen")


def test_wrong_keys(site: Site) -> None:
    assert site.put(f"{KEYS}/ops", key()).status == 400
    assert site.put(f"{KEYS}/ops", key("Own")).status == 400
    assert site.put(f"{KEYS}/ops", "<QueueDescription/>").status == 400
    for number in range(9):
        assert site.put(f"{KEYS}/k{number}", key("Send")).status == 201
    assert site.put(f"{KEYS}/k9", key("Send")).status == 400
