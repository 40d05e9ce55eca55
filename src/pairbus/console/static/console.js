// Updates the live values of a page: the server sends the changed texts by key. Larger parts, such as the rows of a
// table, are fragments of the page, which the script loads again when the value of their key changes.

const ANNOUNCED_EVERY_MS = 30000;

const cells = new Map();
let announced = document.getElementById("summary")?.textContent ?? "";
let source = null;
let isRefreshing = false;
let isPending = false;

function findCells() {
  cells.clear();
  for (const element of document.querySelectorAll("[data-live]")) {
    const key = element.dataset.live;
    cells.set(key, [...(cells.get(key) ?? []), element]);
  }
}

function applyPatch(patch) {
  for (const [key, text] of Object.entries(patch)) {
    for (const element of cells.get(key) ?? []) {
      element.textContent = text;
    }
  }
  const fragments = [...document.querySelectorAll("[data-refresh]")];
  if (fragments.some((fragment) => fragment.dataset.refresh in patch)) {
    refresh();
  }
}

function loadPage() {
  return fetch(location.href, { headers: { "X-Console": "fragments" } });
}

async function refresh() {
  isPending = true;
  if (isRefreshing) {
    return;
  }
  isRefreshing = true;
  try {
    while (isPending) {
      isPending = false;
      const answer = await loadPage();
      if (answer.ok && !answer.redirected) {
        replaceFragments(new DOMParser().parseFromString(await answer.text(), "text/html"));
      }
    }
  } catch {
    // The stream reports that the server cannot be reached.
  } finally {
    isRefreshing = false;
  }
}

function replaceFragments(page) {
  for (const fragment of document.querySelectorAll("[data-fragment]")) {
    const fresh = page.querySelector(`[data-fragment="${fragment.dataset.fragment}"]`);
    if (fresh === null || fresh.innerHTML === fragment.innerHTML) {
      continue;
    }
    const restore = focusRestorer(fragment);
    fragment.replaceChildren(...fresh.childNodes);
    restore?.(fragment);
  }
  findCells();
}

// Keeps the keyboard focus on a link of a fragment.
function focusRestorer(fragment) {
  const focused = document.activeElement;
  if (!fragment.contains(focused) || focused === fragment) {
    return null;
  }
  const address = focused.getAttribute("href");
  return (replaced) => {
    [...replaced.querySelectorAll("a[href]")].find((link) => link.getAttribute("href") === address)?.focus();
  };
}

function showConnectionError(text) {
  const connection = document.getElementById("connection");
  connection.textContent = text;
  connection.hidden = text === "";
}

// Counts change often; screen readers read a summary from time to time.
function announce() {
  const summary = document.getElementById("summary").textContent;
  if (summary !== announced) {
    announced = summary;
    document.getElementById("announcer").textContent = summary;
  }
}

function listen(address) {
  source = new EventSource(address);
  source.addEventListener("patch", (event) => {
    showConnectionError("");
    applyPatch(JSON.parse(event.data));
  });
  source.addEventListener("logout", () => {
    source.close();
    location.reload();
  });
  source.addEventListener("gone", (event) => {
    source.close();
    showConnectionError(event.data);
  });
  source.addEventListener("error", () => {
    showConnectionError("The server cannot be reached; the values are not current. Reconnecting …");
    if (source.readyState === EventSource.CLOSED) {
      setTimeout(() => listenAgain(address), 2000);
    }
  });
}

// Browsers limit the connections to a server: a hidden page closes its own.
function followVisibility(address) {
  document.addEventListener("visibilitychange", () => {
    source.close();
    if (!document.hidden) {
      listen(address);
    }
  });
}

// A form loads another page: an event of the stream, such as the end of the session, must not reload this one instead.
function stopOnSubmit() {
  document.addEventListener("submit", () => source.close());
}

// A restarted server has no sessions and answers with a status that EventSource does not expose.
async function listenAgain(address) {
  const answer = await loadPage().catch(() => null);
  if (answer !== null && answer.status === 403) {
    location.reload();
  } else if (!document.hidden) {
    listen(address);
  }
}

findCells();
if (document.body.dataset.events) {
  listen(document.body.dataset.events);
  followVisibility(document.body.dataset.events);
  stopOnSubmit();
  setInterval(announce, ANNOUNCED_EVERY_MS);
}
