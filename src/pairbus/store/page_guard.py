"""Guards LMDB from damaged pages of a file that is in use.

LMDB trusts its pages: one that is damaged can hide records, and if LMDB changes it, the damage spreads to the process's
memory. So the pages that a batch changes are checked first, and so is what a read returns if it is not convincing. The
range of keys of a damaged page is *fenced*: LMDB neither reads nor writes it any more. What can be read of it is read
by hand, and new values of these keys are stored under other keys.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from pairbus.store.errors import StoreFailedError
from pairbus.store.keyvalue import LONGEST_KEY_BYTES
from pairbus.store.page_nodes import (
    Child,
    LenientWalk,
    LostPage,
    PageNode,
    PageSource,
    PlainLeaf,
    child_at,
    child_for,
    child_page,
    has_flags,
    is_in_order,
    leaf_nodes,
    node_index,
    node_key,
    page_kind,
    plain_leaf,
    plausible_pointers,
    sound_pointers,
)
from pairbus.store.pages import BRANCH, LEAF, NO_PAGE, PAGE_HEADER, TreeRoot

_DEEPEST_TREE: Final = 32
_BUFFER_SHARE: Final = 3
"""A leaf is a buffer if it is a third full."""

_DAMAGED_VALUE: Final = "it is not the large value that should be here"
_DAMAGED: Final = "its structure is damaged, or it is not the page that should be here"


_END: Final = b"\xff" * (LONGEST_KEY_BYTES + 1)
"""A key after all keys."""


class LivePages(PageSource):
    """The pages of a file that is in use. A disk that cannot be read now says nothing about their content."""

    def __init__(self, descriptor: int, page_bytes: int, place: str) -> None:
        super().__init__(descriptor, page_bytes)
        self._place = place

    def fail(self, error: OSError) -> bytes:
        raise StoreFailedError(self._place, str(error)) from error


class Leaf(NamedTuple):
    """A sound leaf, and the range of the keys that belong there."""

    page: int
    low: bytes
    high: bytes | None
    data: bytes
    pointers: tuple[int, ...]

    def find(self, key: bytes) -> int | None:
        """Return the offset of the node with this key."""
        index = node_index(self.data, self.pointers, key) - 1
        if index < 0 or node_key(self.data, self.pointers[index]) != key:
            return None
        return self.pointers[index]


Found: TypeAlias = Leaf | LostPage


class Branch:
    """A sound branch, and the range of the keys that belong below it."""

    __slots__ = ("data", "high", "low", "pointers")

    def __init__(self, data: bytes, pointers: tuple[int, ...], low: bytes, high: bytes | None) -> None:
        self.data = data
        self.pointers = pointers
        self.low = low
        self.high = high

    def covers(self, key: bytes) -> bool:
        return self.low <= key and (self.high is None or key < self.high)

    def index_of(self, key: bytes, near: int = 0) -> int:
        """Return the index of the child that a key belongs to; ``near`` is where to look first, and not after it."""
        following = near + 2
        if following < len(self.pointers) and key < node_key(self.data, self.pointers[following]):
            return near if key < node_key(self.data, self.pointers[near + 1]) else near + 1
        return node_index(self.data, self.pointers, key, near + 1) - 1

    def bounds(self, index: int) -> tuple[bytes, bytes]:
        """Return the range of keys of a child."""
        is_last = index + 1 == len(self.pointers)
        low = self.low if index == 0 else node_key(self.data, self.pointers[index])
        high = (self.high or _END) if is_last else node_key(self.data, self.pointers[index + 1])
        return low, high

    def child(self, index: int) -> Child:
        return child_at(self.data, self.pointers, index, self.low, self.high)


class PathReader:
    """Reads the pages on the way to single keys, each once: create a new one for each operation."""

    def __init__(self, pages: PageSource, tree: TreeRoot, recent: RecentlySound | None = None) -> None:
        """``recent`` is what need not be checked again; what is found sound is added to it."""
        self._pages = pages
        self._root = tree.root
        self._lowest_level = tree.depth - 1
        self._recent = recent
        self._plain: dict[int, PlainLeaf | None] = {}
        """Leaves below the last branch, by their index in it."""
        self._read: dict[int, tuple[bytes, int, tuple[int, ...]] | None] = {}
        self._parent: Branch | None = None
        """The branch above the leaf that was read last in the order of the keys, and the index of that leaf in it."""
        self._index = 0
        self.entered: list[tuple[Branch, int]] = []
        """The branches that ``next_leaf`` has read last, from the root on, each with the index of the next page."""

    def leaf(self, key: bytes, *, before: bool = False) -> Found | None:
        """Return the leaf of a key, or with ``before`` the one of the keys before it; ``None`` if the tree is empty."""
        if self._root == NO_PAGE:
            return None
        child = Child(self._root, b"", None)
        for level in range(_DEEPEST_TREE):
            found = self._page(child)
            if found is None:
                return self._lost(child, level)
            page, kind, pointers = found
            if kind == LEAF:
                return Leaf(child.page, child.low, child.high, page, pointers)
            child = child_for(page, pointers, key, child.low, child.high, before=before)
        return self._lost(child, _DEEPEST_TREE)

    def _lost(self, child: Child, level: int) -> LostPage:
        return LostPage(child.page, _DAMAGED, child.low, child.high, is_branch=level < self._lowest_level)

    def next_leaf(self, key: bytes) -> Found | None:
        """Return the leaf of a key, as ``leaf`` does: faster if keys are asked for in their order."""
        parent = self._parent
        if parent is not None and parent.covers(key):
            self._index = parent.index_of(key, self._index)
            return self._found(parent.child(self._index))
        self._parent = None
        self._plain = {}
        if self._root == NO_PAGE:
            return None
        child = Child(self._root, b"", None)
        path: list[tuple[Branch, int]] = []
        for level in range(_DEEPEST_TREE):
            found = self._page(child)
            if found is None:
                return self._lost(child, level)
            if found[1] == LEAF:
                break
            page, _, pointers = found
            self._parent = Branch(page, pointers, child.low, child.high)
            self._index = self._parent.index_of(key)
            path.append((self._parent, self._index))
            child = self._parent.child(self._index)
        self.entered = path
        return self._found(child)

    def damaged_beside(self, recent: RecentlySound) -> LostPage | None:
        """Return a damaged page that LMDB reads if it merges one of the branches that ``next_leaf`` has entered last.

        LMDB merges a branch that has lost all children but one with a branch beside it, and moves children between
        them. For that it reads the first leaf below each. These pages are checked once for each branch.
        """
        path, self.entered = self.entered, []
        if not path or not recent.begin_merge_check(path[-1][0]):
            return None
        for level, (branch, index) in enumerate(path[:-1], 1):
            for each in range(max(0, index - 1), min(index + 2, len(branch.pointers))):
                lost = self._damaged_on_the_left(branch.child(each), level)
                if lost is not None:
                    recent.forget_merge_check(path[-1][0])
                    return lost
        return None

    def _damaged_on_the_left(self, child: Child, level: int) -> LostPage | None:
        """Return the first damaged page on the way from a page to the first leaf below it."""
        for below in range(level, _DEEPEST_TREE):
            found = self._page(child)
            if found is None:
                return self._lost(child, below)
            page, kind, pointers = found
            if kind == LEAF:
                return None
            child = child_at(page, pointers, 0, child.low, child.high)
        return None

    def has_sound_neighbours(self, leaf: Leaf) -> bool:
        """Return whether the leaves before and after the one that ``next_leaf`` has returned are sound.

        Further leaves are checked as far as LMDB can get if it removes all records of this one.
        """
        parent, index = self._parent, self._index
        if parent is None or not 0 < index < len(parent.pointers) - 1:
            neighbours = [*self.neighbours(leaf)]
        else:
            neighbours = [self._found(parent.child(each)) for each in (index - 1, index + 1)]
        if all(is_buffer(each, _used_bytes(each)) for each in neighbours):
            return True
        return all(isinstance(each, Leaf) for each in self.widened([leaf, *neighbours]))

    def sound_range(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the range of the leaf of a key, if LMDB can change it and its neighbours.

        ``None`` if it cannot, or if that takes more than a look at the leaves below one branch.
        """
        if self._parent is None or not self._parent.covers(key):
            self.next_leaf(key)
        parent = self._parent
        if parent is None or not parent.covers(key):
            return None
        self._index = index = parent.index_of(key, self._index)
        leaf = self._plain_leaf(parent, index)
        if leaf is None or not self._is_buffered(parent, index, -1) or not self._is_buffered(parent, index, 1):
            return None
        low, high = parent.bounds(index)
        return (low, high) if low <= leaf.first_key and leaf.last_key < high else None

    def _is_buffered(self, parent: Branch, index: int, step: int) -> bool:
        """Return whether sound leaves on one side of a leaf keep LMDB from what is beyond them.

        A leaf that was checked recently, to be changed, has such leaves beside it.
        """
        used_bytes = 0
        while _BUFFER_SHARE * used_bytes < self._pages.page_bytes:
            index += step
            if index < 0:
                return not parent.low  # there is no leaf before the first of the tree
            if index == len(parent.pointers):
                return parent.high is None
            if self._is_recent(parent, index):
                return True
            leaf = self._plain_leaf(parent, index)
            if leaf is None:
                return False
            used_bytes += leaf.used_bytes
        return True

    def _is_recent(self, parent: Branch, index: int) -> bool:
        """Return whether a leaf is in a range that was checked recently."""
        if self._recent is None:
            return False
        low, high = parent.bounds(index)
        end = self._recent.leaves.end_of(low)
        return end is not None and high <= end

    def _plain_leaf(self, parent: Branch, index: int) -> PlainLeaf | None:
        if index in self._plain:
            return self._plain[index]
        number = child_page(parent.data, parent.pointers[index])
        self._plain[index] = leaf = plain_leaf(number, self._pages.read(number))
        return leaf

    def widened(self, around: Sequence[Found]) -> list[Found]:
        """Return these leaves, and others until the sound ones on each side keep LMDB from what is beyond them."""
        found = [*around]
        left, right = min(found, key=lambda each: each.low), max(found, key=lambda each: each.high or _END)
        buffered = _used_bytes(left)
        while left.low and not is_buffer(left, buffered):
            before = self.leaf(left.low, before=True)
            if before is None or before.low >= left.low:
                break
            found.append(left := before)
            buffered = buffered + _used_bytes(left) if isinstance(left, Leaf) else 0
        buffered = _used_bytes(right)
        while right.high is not None and not is_buffer(right, buffered):
            after = self.leaf(right.high)
            if after is None or (after.high is not None and after.high <= right.high):
                break
            found.append(right := after)
            buffered = buffered + _used_bytes(right) if isinstance(right, Leaf) else 0
        return found

    def neighbours(self, found: Found) -> Iterator[Found]:
        """Iterate over the leaves before and after this one."""
        for each in (
            self.leaf(found.low, before=True) if found.low else None,
            None if found.high is None else self.leaf(found.high),
        ):
            if each is not None:
                yield each

    def node(self, leaf: Leaf, key: bytes) -> PageNode | None:
        at = leaf.find(key)
        return None if at is None else self._pages.node(leaf.page, leaf.data, at)

    def lost_value(self, leaf: Leaf) -> LostPage | None:
        """Return a leaf as lost if LMDB cannot free the pages of one of its large values."""
        for at in leaf.pointers:
            page = self._pages.lost_value_page(leaf.data, at) if has_flags(leaf.data, at) else None
            if page is not None:
                return LostPage(leaf.page, _DAMAGED_VALUE, leaf.low, leaf.high, value_page=page)
        return None

    def _found(self, child: Child) -> Found:
        found = self._page(child)
        if found is None or found[1] != LEAF:
            return LostPage(child.page, _DAMAGED, child.low, child.high)
        return Leaf(child.page, child.low, child.high, found[0], found[2])

    def _page(self, child: Child) -> tuple[bytes, int, tuple[int, ...]] | None:
        number = child.page
        if number not in self._read:
            self._read[number] = self._checked(child)
        return self._read[number]

    def _checked(self, child: Child) -> tuple[bytes, int, tuple[int, ...]] | None:
        page = self._pages.read(child.page)
        kind = page_kind(page)
        if kind == BRANCH and self._recent is not None:
            pointers = self._recent.branch_pointers(child, page)
        else:
            pointers = _sound_pointers(child, page, kind)
        return None if pointers is None else (page, kind, pointers)


def is_buffer(leaf: Found, buffered: int) -> bool:
    """Return whether leaves with so many bytes in all keep LMDB from what is beyond the last of them, if it is sound.

    LMDB fills up a leaf that is less than a quarter full from the next one, or merges the two, when it removes a record
    of it. As long as none of their own records is removed, leaves that it merges into one fill that more and more, and
    one that is fuller than a quarter never needs the next.
    """
    return isinstance(leaf, Leaf) and _BUFFER_SHARE * buffered >= len(leaf.data)


def _used_bytes(found: Found) -> int:
    if isinstance(found, LostPage):
        return 0
    lower, upper = PAGE_HEADER.unpack_from(found.data)[3:]
    return len(found.data) - int(upper - lower)


def doubtful_leaves(path: PathReader, key: bytes) -> list[Found]:
    """Return the leaf of a key that was not found, or whose value is damaged, if it or a neighbour is damaged.

    The order of their keys counts, too: a damaged key in a branch leads to the wrong one of two leaves.
    """
    leaf = path.leaf(key)
    if leaf is None:
        return []
    found = [leaf, *path.neighbours(leaf)]
    return found if any(map(_is_doubtful, found)) else []


def _is_doubtful(found: Found) -> bool:
    return isinstance(found, LostPage) or not is_in_order(found.data, found.pointers, found.low, found.high)


class KeyRanges:
    """Ranges of keys in their order, none of which touches the next one."""

    def __init__(self) -> None:
        self._lows: list[bytes] = []
        self._highs: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._lows)

    def end_of(self, key: bytes) -> bytes | None:
        """Return the end of the range that a key is in; ``None`` if it is in none."""
        index = bisect_right(self._lows, key) - 1
        return self._highs[index] if index >= 0 and key < self._highs[index] else None

    def next_in(self, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the first range between two keys, as far as it is between them."""
        index = bisect_right(self._highs, start)
        if index == len(self._lows) or self._lows[index] >= end:
            return None
        return max(self._lows[index], start), min(self._highs[index], end)

    def add(self, low: bytes, high: bytes) -> None:
        if self._highs and self._highs[-1] == low:  # as when keys are added in their order
            self._highs[-1] = high
            return
        first, end = bisect_left(self._highs, low), bisect_right(self._lows, high)
        low, high = min([low, *self._lows[first:end]]), max([high, *self._highs[first:end]])
        self._lows[first:end], self._highs[first:end] = [low], [high]

    def clear(self) -> None:
        self._lows.clear()
        self._highs.clear()


class RecentlySound:
    """Ranges of keys whose pages were checked recently, and were written since then by LMDB only.

    A branch page has hundreds of nodes, and every commit rewrites it.
    """

    def __init__(self) -> None:
        self.leaves = KeyRanges()
        self._branches: set[tuple[bytes, bytes | None]] = set()
        self._mergeable: set[tuple[bytes, bytes | None]] = set()

    def clear(self) -> None:
        self.leaves.clear()
        self._branches.clear()
        self._mergeable.clear()

    def begin_merge_check(self, branch: Branch) -> bool:
        """Return whether the pages beside and below a branch are to be checked; they count as sound from then on."""
        keys = branch.low, branch.high
        if keys in self._mergeable:
            return False
        self._mergeable.add(keys)
        return True

    def forget_merge_check(self, branch: Branch) -> None:
        self._mergeable.discard((branch.low, branch.high))

    def branch_pointers(self, child: Child, page: bytes) -> tuple[int, ...] | None:
        """Return where the nodes of a branch are; ``None`` if it is damaged."""
        keys = child.low, child.high
        if keys in self._branches:
            return plausible_pointers(child.page, page, BRANCH)
        pointers = _sound_pointers(child, page, BRANCH)
        if pointers is not None:
            self._branches.add(keys)
        return pointers


def _sound_pointers(child: Child, page: bytes, kind: int) -> tuple[int, ...] | None:
    """Return where the nodes of a page are; ``None`` if it is damaged. LMDB ignores the first key of a branch."""
    if kind not in (LEAF, BRANCH):
        return None
    pointers = sound_pointers(child.page, page, kind)
    if pointers is not None and kind == BRANCH and len(pointers) > 1:
        return pointers if is_in_order(page, pointers[1:], child.low, child.high) else None
    return pointers


def unwritable_leaves(
    path: PathReader, keys: Sequence[bytes], recent: RecentlySound, *, merges: bool = False
) -> list[Found]:
    """Return the first leaves that LMDB must not change, although writing these keys, in their order, changes them.

    If LMDB removes records from a leaf, it may change its neighbours, too. What is in a sound range of ``recent`` is
    not checked; the ranges of sound leaves are added to it. With ``merges``, the pages that LMDB reads when it merges
    branches are checked, too.
    """
    sound = recent.leaves
    position = 0
    while position < len(keys):
        end = sound.end_of(keys[position])
        if end is None:
            checked = path.sound_range(keys[position])
            if checked is None:
                leaf = path.next_leaf(keys[position])
                if leaf is None:
                    return []
                if isinstance(leaf, LostPage) or _is_doubtful(leaf) or not path.has_sound_neighbours(leaf):
                    return [leaf, *path.neighbours(leaf)]
                lost_value = path.lost_value(leaf)
                if lost_value is not None:
                    return [lost_value]
                checked = leaf.low, _END if leaf.high is None else leaf.high
            beside = path.damaged_beside(recent) if merges and path.entered else None
            if beside is not None:
                return [beside._replace(is_branch=True)]
            sound.add(*checked)
            end = checked[1]
        position = bisect_left(keys, end, position + 1)
    return []


def unconfined(pages: PageSource, around: Sequence[Found]) -> str | None:
    """Return why damage cannot be confined to the records on damaged leaves; ``None`` if it can.

    A damaged branch, or a damaged reference in one, hides records that are sound.
    """
    for found in around:
        if isinstance(found, Leaf):
            keys = [node_key(found.data, at) for at in found.pointers]
            if is_in_order(found.data, found.pointers, b"", None) and not _is_between(found, keys[0], keys[-1]):
                return f"page {found.page} has keys outside the range that leads to it"
        elif found.is_branch:
            return f"page {found.page} is damaged, and other pages depend on it"
        elif _is_another_page(pages, found):
            return f"page {found.page} is not the one that should be there"
    return None


def _is_between(found: Found, first: bytes, last: bytes) -> bool:
    return found.low <= first and (found.high is None or last < found.high)


def _is_another_page(pages: PageSource, lost: LostPage) -> bool:
    """Return whether a damaged number has led to a page: it has that number, but none of the records, or is missing."""
    if lost.page >= pages.count:
        return True
    page = pages.read(lost.page)
    nodes = leaf_nodes(pages, lost.page, page)
    has_records = any(node.value is not None and lost.covers(node.key) for node in nodes)
    return PAGE_HEADER.unpack_from(page)[0] == lost.page and not has_records


class Fences:
    """The ranges of keys that LMDB neither reads nor writes any more, and the records that were found there."""

    def __init__(self) -> None:
        self._ranges = KeyRanges()
        self._places: dict[bytes, tuple[int, int]] = {}
        self.count = 0
        """Number of ranges that were fenced."""

        self.lost_pages: list[LostPage] = []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def covers(self, key: bytes) -> bool:
        return self._ranges.end_of(key) is not None

    def next_in(self, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the first fenced range between two keys, as far as it is between them."""
        return self._ranges.next_in(start, end)

    def place(self, key: bytes) -> tuple[int, int] | None:
        """Return the page and the offset at which a record was found."""
        return self._places.get(key)

    def keys(self, low: bytes, high: bytes) -> list[bytes]:
        """Return the keys of the records that were found in a range."""
        return [key for key in self._places if low <= key < high]

    def add(self, pages: PageSource, root: int, around: Sequence[Found], free: frozenset[int] | None) -> list[LostPage]:
        """Fence the ranges of damaged pages and of their neighbours; return the damaged pages that are new.

        ``free`` are the free pages, which hold earlier versions of records; ``None`` if they are unknown.
        """
        low = min(each.low for each in around)
        high = max(_END if each.high is None else each.high for each in around)
        walk = LenientWalk(pages, bytearray(pages.count), free or frozenset(), follows=free is not None)
        for node in walk.records(root, low, high):
            if low <= node.key < high:
                self._places.setdefault(node.key, (node.page, node.offset))
        self._ranges.add(low, high)
        self.count += 1
        known = {page.page for page in self.lost_pages}
        lost = [*walk.lost_pages, *(each for each in around if isinstance(each, LostPage))]
        new = [page for number, page in {each.page: each for each in lost}.items() if number not in known]
        self.lost_pages += new
        return new
