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
    child_at,
    child_for,
    child_page,
    has_flags,
    is_in_order,
    leaf_nodes,
    node_index,
    node_key,
    page_kind,
    plausible_pointers,
    sound_pointers,
)
from pairbus.store.pages import BRANCH, LEAF, NO_PAGE, PAGE_HEADER, TreeRoot

_DEEPEST_TREE: Final = 32
_BUFFER_SHARE: Final = 3
"""A leaf is a buffer if it is a third full."""

_DAMAGED_VALUE: Final = "it is not the large value that should be here"
_DAMAGED: Final = "its structure is damaged, or it is not the page that should be here"


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
    pointers: Sequence[int]

    def find(self, key: bytes) -> int | None:
        """Return the offset of the node with this key."""
        index = node_index(self.data, self.pointers, key) - 1
        if index < 0 or node_key(self.data, self.pointers[index]) != key:
            return None
        return self.pointers[index]


Found: TypeAlias = Leaf | LostPage


class Branch(NamedTuple):
    """A sound branch, and the range of the keys that belong below it."""

    data: bytes
    pointers: Sequence[int]
    low: bytes
    high: bytes | None

    def index_of(self, key: bytes, near: int = 0) -> int:
        """Return the index of the child that a key belongs to; ``near`` is where to look first, and not after it."""
        following = near + 2
        if following < len(self.pointers) and key < node_key(self.data, self.pointers[following]):
            return near if key < node_key(self.data, self.pointers[near + 1]) else near + 1
        return node_index(self.data, self.pointers, key, near + 1) - 1

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
        self._changeable: dict[int, tuple[bytes, Sequence[int]]] = {}
        """Leaves that LMDB can change."""
        self._read: dict[int, tuple[bytes, int, Sequence[int]] | None] = {}
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
        if parent is not None and parent.low <= key and (parent.high is None or key < parent.high):
            self._index = parent.index_of(key, self._index)
            return self._found(parent.child(self._index))
        self._parent = None
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

        ``None`` if it cannot, or if that is not as quick to tell as for a leaf in the middle of the last branch.
        """
        parent = self._parent
        if parent is None or key < parent.low or (parent.high is not None and key >= parent.high):
            return None
        self._index = index = parent.index_of(key, self._index)
        data, pointers = parent.data, parent.pointers
        if not 0 < index < len(pointers) - 1:
            return None
        for each in (index - 1, index + 1):
            neighbour = self._changeable_leaf(child_page(data, pointers[each]))
            if neighbour is None or not _is_full_enough(neighbour[0], _used(neighbour[0])):
                return None
        leaf = self._changeable_leaf(child_page(data, pointers[index]))
        if leaf is None:
            return None
        low, high = node_key(data, pointers[index]), node_key(data, pointers[index + 1])
        # LMDB searches the leaf: with one key out of order, it would store others at a wrong place.
        return (low, high) if is_in_order(*leaf, low, high) else None

    def _changeable_leaf(self, number: int) -> tuple[bytes, Sequence[int]] | None:
        """Return a leaf, and where its nodes are, if LMDB can change it."""
        known = self._changeable.get(number)
        if known is not None:
            return known
        page = self._pages.read(number)
        pointers = sound_pointers(number, page, LEAF)
        if pointers is None or self._lost_value_page(page, pointers) is not None:
            return None
        self._changeable[number] = page, pointers
        return page, pointers

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
        page = self._lost_value_page(leaf.data, leaf.pointers)
        return None if page is None else LostPage(leaf.page, _DAMAGED_VALUE, leaf.low, leaf.high, value_page=page)

    def _lost_value_page(self, page: bytes, pointers: Sequence[int]) -> int | None:
        for at in pointers:
            lost = self._pages.lost_value_page(page, at) if has_flags(page, at) else None
            if lost is not None:
                return lost
        return None

    def _found(self, child: Child) -> Found:
        found = self._page(child)
        if found is None or found[1] != LEAF:
            return LostPage(child.page, _DAMAGED, child.low, child.high)
        return Leaf(child.page, child.low, child.high, found[0], found[2])

    def _page(self, child: Child) -> tuple[bytes, int, Sequence[int]] | None:
        number = child.page
        if number not in self._read:
            self._read[number] = self._checked(child)
        return self._read[number]

    def _checked(self, child: Child) -> tuple[bytes, int, Sequence[int]] | None:
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
    return isinstance(leaf, Leaf) and _is_full_enough(leaf.data, buffered)


def _is_full_enough(page: bytes, used_bytes: int) -> bool:
    return _BUFFER_SHARE * used_bytes >= len(page)


def _used(page: bytes) -> int:
    lower, upper = PAGE_HEADER.unpack_from(page)[3:]
    return len(page) - int(upper - lower)


def _used_bytes(found: Found) -> int:
    return _used(found.data) if isinstance(found, Leaf) else 0


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


_END: Final = b"\xff" * (LONGEST_KEY_BYTES + 1)
"""A key after all keys."""


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

    def branch_pointers(self, child: Child, page: bytes) -> Sequence[int] | None:
        """Return where the nodes of a branch are; ``None`` if it is damaged."""
        keys = child.low, child.high
        if keys in self._branches:
            return plausible_pointers(child.page, page, BRANCH)
        pointers = _sound_pointers(child, page, BRANCH)
        if pointers is not None:
            self._branches.add(keys)
        return pointers


def _sound_pointers(child: Child, page: bytes, kind: int) -> Sequence[int] | None:
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
                beside = path.damaged_beside(recent) if merges else None
                if beside is not None:
                    return [beside._replace(is_branch=True)]
                checked = leaf.low, _END if leaf.high is None else leaf.high
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
