// Keeps the numbers of a page up to date: the server sends the texts that have changed, by their keys. What is more than
// a number, such as the rows of a table, is a fragment of the page, and is asked for anew when its key has changed.

const ANNOUNCED_EVERY_MS = 30000;

const cells = new Map();
let announced = document.getElementById("summary")?.textContent ?? "";
let source = null;
let isRefreshing = false;
let isWanted = false;

function findCells() {
  cells.clear();
  for (const element of document.querySelectorAll("[data-live]")) {
    const key = element.dataset.live;
    cells.set(key, [...(cells.get(key) ?? []), element]);
  }
}

function take(patch) {
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

function ask() {
  return fetch(location.href, { headers: { "X-Console": "fragments" } });
}

async function refresh() {
  isWanted = true;
  if (isRefreshing) {
    return;
  }
  isRefreshing = true;
  try {
    while (isWanted) {
      isWanted = false;
      const answer = await ask();
      if (answer.ok && !answer.redirected) {
        replaceFragments(new DOMParser().parseFromString(await answer.text(), "text/html"));
      }
    }
  } catch {
    // The stream says that the server cannot be reached.
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
    const place = focusedPlace(fragment);
    fragment.replaceChildren(...fresh.childNodes);
    place?.(fragment);
  }
  findCells();
}

// Whoever is on a link of a fragment by keyboard stays there.
function focusedPlace(fragment) {
  const focused = document.activeElement;
  if (!fragment.contains(focused) || focused === fragment) {
    return null;
  }
  const address = focused.getAttribute("href");
  return (replaced) => {
    [...replaced.querySelectorAll("a[href]")].find((link) => link.getAttribute("href") === address)?.focus();
  };
}

function say(text) {
  const connection = document.getElementById("connection");
  connection.textContent = text;
  connection.hidden = text === "";
}

// Counts change all the time; somebody who listens is told now and then.
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
    say("");
    take(JSON.parse(event.data));
  });
  source.addEventListener("over", () => {
    source.close();
    location.reload();
  });
  source.addEventListener("gone", (event) => {
    source.close();
    say(event.data);
  });
  source.addEventListener("error", () => {
    say("The server cannot be reached: what you see is old. Trying again …");
    if (source.readyState === EventSource.CLOSED) {
      setTimeout(() => listenAgain(address), 2000);
    }
  });
}

// A browser keeps few connections to a server: a page that nobody sees gives its own back.
function followVisibility(address) {
  document.addEventListener("visibilitychange", () => {
    source.close();
    if (!document.hidden) {
      listen(address);
    }
  });
}

// A server that was started anew knows nobody, and says so by a status that the stream does not show.
async function listenAgain(address) {
  const answer = await ask().catch(() => null);
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
  setInterval(announce, ANNOUNCED_EVERY_MS);
}
