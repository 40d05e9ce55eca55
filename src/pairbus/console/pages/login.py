"""Where somebody shows a key."""

from __future__ import annotations

from pairbus.console.markup import Markup, fill, render


def login_page(
    namespace: str, following: str, *, complaint: str = "", reason: str = "", is_open: bool = False
) -> Markup:
    """Why somebody has to log in again is the ``reason``.

    ``is_open`` says that others can read what is typed: the page came without TLS, over a network.
    """
    warning = Markup(
        '<p class="warning" role="note">This page came without encryption. What you type can be read on the way: use'
        " an address that begins with https instead.</p>"
    )
    return render(
        "login",
        namespace=namespace,
        following=following,
        complaint=fill('<p class="error" role="alert">$text</p>', text=complaint) if complaint else Markup(),
        reason=fill('<p class="notice" role="status">$text</p>', text=reason) if reason else Markup(),
        warning=warning if is_open else Markup(),
    )
