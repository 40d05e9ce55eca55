"""What the application of the demo has sent and received, and what that comes to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence


class Tally:
    """Every message by its id: where it was sent to, and where it came out.

    ``places`` says for each entity that is sent to where its messages are to be received.
    """

    def __init__(self, places: Mapping[str, Sequence[str]]) -> None:
        self.failed = 0
        """Sends that raised an error."""

        self.longest_wait_s = 0.0
        """Of a send."""

        self.redelivered = 0
        """Deliveries of messages that had been delivered before."""

        self._places = places
        self._sent: dict[str, list[str]] = {entity: [] for entity in places}
        self._completed: dict[str, defaultdict[str, set[int]]] = {
            place: defaultdict(set) for group in places.values() for place in group
        }
        self._received: dict[str, set[str]] = {place: set() for place in self._completed}

    def note_sent(self, entity: str, message_id: str, wait_s: float) -> None:
        """A send has returned."""
        self._sent[entity].append(message_id)
        self.longest_wait_s = max(self.longest_wait_s, wait_s)

    def note_failed(self, wait_s: float) -> None:
        """A send has raised an error."""
        self.failed += 1
        self.longest_wait_s = max(self.longest_wait_s, wait_s)

    def note_received(self, place: str, message_id: str) -> None:
        """A message was delivered."""
        self.redelivered += message_id in self._received[place]
        self._received[place].add(message_id)

    def note_completed(self, place: str, message_id: str, number: int) -> None:
        """The completion of a message was confirmed; ``number`` is what it was known by at that place."""
        self._completed[place][message_id].add(number)

    @property
    def sent(self) -> int:
        return sum(map(len, self._sent.values()))

    @property
    def received(self) -> int:
        """Messages, at each place that they came out at."""
        return sum(map(len, self._received.values()))

    @property
    def expected(self) -> int:
        """What is to be received in the end."""
        return sum(len(self._sent[entity]) * len(group) for entity, group in self._places.items())

    @property
    def lost(self) -> int:
        """What was sent, and did not come out where it should have."""
        return sum(1 for _ in self._lost())

    @property
    def doubled(self) -> int:
        """Messages that were completed once more under another number.

        What comes again because its completion was not confirmed is not among them: to complete it is to go on.
        """
        return sum(len(numbers) - 1 for place in self._completed.values() for numbers in place.values())

    def mishaps(self) -> Iterator[str]:
        """What was lost or doubled, one by one."""
        for place, message_id in self._lost():
            yield f"{message_id} did not come to {place}"
        for place, messages in self._completed.items():
            for message_id, numbers in messages.items():
                if len(numbers) > 1:
                    yield f"{message_id} was completed at {place} under the numbers {sorted(numbers)}"

    def _lost(self) -> Iterator[tuple[str, str]]:
        for entity, group in self._places.items():
            for place in group:
                received = self._received[place]
                yield from ((place, message_id) for message_id in self._sent[entity] if message_id not in received)
