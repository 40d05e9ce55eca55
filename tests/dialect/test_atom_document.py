"""Untrusted documents are rejected quickly."""

from __future__ import annotations

import time

import pytest

from pairbus.dialect.atom import QUEUE, AtomError, parse_entry, parse_error, parse_feed, parse_request
from pairbus.dialect.atom.document import MAX_DEPTH, MAX_ELEMENTS, read

_BOMB = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
_MEGABYTE = 1 << 20

HOSTILE = {
    "nothing": b"",
    "spaces": b"   \n",
    "text": b"hello",
    "JSON": b'{"QueueDescription": {}}',
    "zeros": bytes(1_000),
    "noise": bytes(range(256)) * 4,
    "cut": b'<entry xmlns="http://www.w3.org/2005/Atom"><content>',
    "two roots": b"<a/><b/>",
    "crossed": b"<a><b></a></b>",
    "prefix without namespace": b"<x:a/>",
    "attribute twice": b'<a b="1" b="2"/>',
    "undefined entity": b"<a>&nope;</a>",
    "character that is none": b"<a>&#0;</a>",
    "document type": b"<!DOCTYPE a><a/>",
    "external document type": b'<!DOCTYPE a SYSTEM "http://example.invalid/x.dtd"><a/>',
    "external entity": b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]><a>&x;</a>',
    "parameter entity": b'<!DOCTYPE a [<!ENTITY % x SYSTEM "file:///etc/hostname"> %x;]><a/>',
    "laughs": f'<!DOCTYPE a [<!ENTITY l0 "ha">{_BOMB}]><a>&l11;</a>'.encode(),
    "quadratic": f'<!DOCTYPE a [<!ENTITY x "{"x" * 50_000}">]><a>{"&x;" * 50_000}</a>'.encode(),
    "deep": b"<a>" * (_MEGABYTE // 3),
    "deep and closed": b"<a>" * 100_000 + b"</a>" * 100_000,
    "many": b"<a>" + b"<b/>" * (MAX_ELEMENTS + 1) + b"</a>",
    "many attributes": b"<a " + b" ".join(b'a%d=""' % number for number in range(30_000)) + b"/>",
    "many namespaces": b"<a " + b" ".join(b'xmlns:a%d="u"' % number for number in range(60_000)) + b"/>",
    "a long namespace": b'<a xmlns="' + b"u" * 500_000 + b'">' + b"<b/>" * 90_000 + b"</a>",
    "a long name": (b"<" + b"a" * 5_000 + b">") * 30 + (b"</" + b"a" * 5_000 + b">") * 30,
    "unknown encoding": b'<?xml version="1.0" encoding="nope"?><a/>',
    "encoding that is none of text": b'<?xml version="1.0" encoding="rot13"?><a/>',
    "encoding that lies": b'<?xml version="1.0" encoding="utf-16"?><a/>',
    "half a character": b"<a>\xc3</a>",
    "surrogate": b"<a>\xed\xa0\x80</a>",
}


@pytest.mark.parametrize("document", HOSTILE.values(), ids=HOSTILE)
def test_hostile_document_is_rejected_quickly(document: bytes) -> None:
    started = time.process_time()
    with pytest.raises(AtomError):
        read(document)
    for parse in (parse_request, parse_entry, parse_feed):
        with pytest.raises(AtomError):
            parse(document, QUEUE)
    with pytest.raises(AtomError):
        parse_error(document)
    assert time.process_time() - started < 5


def test_document_at_depth_limit_is_parsed() -> None:
    assert read(b"<a>" * MAX_DEPTH + b"</a>" * MAX_DEPTH).tag == "a"
    with pytest.raises(AtomError, match="nested too deeply"):
        read(b"<a>" * (MAX_DEPTH + 1) + b"</a>" * (MAX_DEPTH + 1))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings_are_supported(encoding: str) -> None:
    declared = encoding.removesuffix("-sig")
    document = f'<?xml version="1.0" encoding="{declared}"?><a>\xe9</a>'.encode(encoding)
    assert read(document).text == "\xe9"


def test_comments_and_instructions_are_ignored() -> None:
    assert [found.tag for found in read(b"<?x y?><!-- no --><a><!-- no --><b/><?x y?></a>")] == ["b"]
