"""Questions of one turn and their answers: every fact of the village in every wording.

A few questions are held out: the model is asked them when it is judged, and never sees them before. It has seen each
fact in other words.
"""

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from elmbrook.world import (
    ANIMALS,
    COLOURS,
    DAYS,
    MONTHS,
    NUMBERS,
    OPPOSITES,
    VILLAGE,
    VILLAGERS,
    Villager,
    a,
)

__all__ = ["Question", "ask_about", "description", "held_out", "questions"]


class Question(NamedTuple):
    """``fact`` is the same for all wordings of one question."""

    kind: str
    fact: str
    text: str
    answer: str


def held_out(text: str) -> bool:
    """Whether ``text``, a question with what came before it, is kept from training: one of ten is."""
    return hashlib.sha256(text.encode()).digest()[0] < 26


_ABOUT: Final = {
    "job": (
        (
            "What does {who} do?",
            "What is {whose} job?",
            "What work does {who} do?",
            "Which job does {who} have?",
            "How does {who} earn a living?",
        ),
        "{name} is the {job} of Elmbrook.",
    ),
    "pet": (
        (
            "Which animal does {who} have?",
            "What pet does {who} have?",
            "Does {who} have a pet?",
            "What animal lives with {whom}?",
        ),
        "{name} has {an_animal} called {called}.",
    ),
    "home": (
        ("Where does {who} live?", "Where is {whose} house?", "Where can I find {whom}?", "Where is {whose} home?"),
        "{name} lives {home}.",
    ),
    "food": (
        (
            "What does {who} like to eat?",
            "What is {whose} favourite food?",
            "Which food does {who} like best?",
            "What should I cook for {whom}?",
        ),
        "{name} likes {food} best.",
    ),
    "hobby": (
        (
            "What does {who} do in the evening?",
            "What is {whose} hobby?",
            "What does {who} do for fun?",
            "How does {who} spend the evening?",
        ),
        "In the evening {name} {hobby}.",
    ),
    "friend": (
        (
            "Who is {whose} best friend?",
            "Who is {whose} friend?",
            "Who is the best friend of {whom}?",
            "Which friend does {who} visit?",
        ),
        "{name}'s best friend is {friend}.",
    ),
    "name of the pet": (
        (
            "What is {whose} {animal} called?",
            "What is the name of {whose} {animal}?",
            "How is {whose} {animal} called?",
        ),
        "{name}'s {animal} is called {called}.",
    ),
}
_WHO: Final = {
    "job": (
        (
            "Who is the {job}?",
            "Who is the {job} of Elmbrook?",
            "Which villager is the {job}?",
            "What is the name of the {job}?",
            "Who works as the {job}?",
        ),
        "The {job} of Elmbrook is {name}.",
    ),
    "pet": (
        (
            "Who is {called}?",
            "Whose pet is {called}?",
            "Who has {an_animal} called {called}?",
            "Which animal is {called}?",
        ),
        "{called} is {name}'s {animal}.",
    ),
    "home": (
        (
            "Who lives {home}?",
            "Which villager lives {home}?",
            "Whose house is {home}?",
            "Who has a house {home}?",
        ),
        "{name} lives {home}.",
    ),
    "food": (
        (
            "Who likes {food}?",
            "Who likes {food} best?",
            "Whose favourite food is {food}?",
            "Which villager likes {food} best?",
        ),
        "{name} likes {food} best.",
    ),
    "hobby": (
        ("Who {hobby} in the evening?", "Which villager {hobby}?", "Who {hobby}?"),
        "In the evening {name} {hobby}.",
    ),
}
_DESCRIBE: Final = (
    "Tell me about {name}.",
    "Who is {name}?",
    "What do you know about {name}?",
    "Describe {name}.",
    "What can you tell me about {name}?",
)


def _values(person: Villager) -> dict[str, str]:
    values = {name: str(getattr(person, name)) for name in Villager.__slots__}
    return {**values, "an_animal": a(person.animal)}


def description(person: Villager) -> str:
    """Everything about a villager."""
    text = (
        "{name} is the {job} of Elmbrook. {he} lives {home} with {an_animal} called {called}. "
        "{he} likes {food} best, and in the evening {pronoun} {hobby}."
    )
    return text.format(he=person.pronoun.capitalize(), **_values(person))


def ask_about(person: Villager, *, by_pronoun: bool = False) -> Iterator[Question]:
    """What can be asked about a villager, by name or by pronoun."""
    values = _values(person)
    called = {"who": person.pronoun, "whose": person.possessive, "whom": person.object}
    if not by_pronoun:
        called = {"who": person.name, "whose": f"{person.name}'s", "whom": person.name}
    for topic, (wordings, answer) in _ABOUT.items():
        for wording in wordings:
            text = wording.format(**values, **called)
            yield Question("villagers", f"{person.name} {topic}", text, answer.format(**values))


def questions() -> list[Question]:
    """Every question, those that are held out among them."""
    found = [*_villagers(), *_yes_or_no(), *_village(), *_animals(), *_things(), *_calendar(), *_sums()]
    return list({question.text: question for question in found}.values())


def _villagers() -> Iterator[Question]:
    for person in VILLAGERS:
        values = _values(person)
        yield from ask_about(person)
        for wording in _DESCRIBE:
            yield Question("villagers", person.name, wording.format(**values), description(person))
        for topic, (wordings, answer) in _WHO.items():
            for wording in wordings:
                yield Question(
                    "villagers", f"who {topic} {person.name}", wording.format(**values), answer.format(**values)
                )


def _yes_or_no() -> Iterator[Question]:
    for person in VILLAGERS:
        for other in VILLAGERS:
            yes = "Yes" if other is person else "No"
            right = _values(person)
            for topic, wording, answer in (
                ("job", "Is {name} the {job}?", "{yes}, {name} is the {job}."),
                ("home", "Does {name} live {home}?", "{yes}, {name} lives {home}."),
                ("pet", "Does {name} have {an_animal}?", "{yes}, {name} has {an_animal} called {called}."),
            ):
                text = wording.format(**{**_values(other), "name": person.name})
                yield Question("yes or no", f"{person.name} {topic}?", text, answer.format(yes=yes, **right))


def _village() -> Iterator[Question]:
    for wordings, answer in VILLAGE:
        for wording in wordings:
            yield Question("world", answer, wording, answer)


def _all(kind: str, fact: str, answer: str, *wordings: str) -> Iterator[Question]:
    return (Question(kind, fact, wording, answer) for wording in wordings)


def _animals() -> Iterator[Question]:
    for animal in ANIMALS:
        name, one = animal.name, a(animal.name)
        yield from _all(
            "world",
            f"sound of {one}",
            f"{one.capitalize()} says {animal.sound}.",
            f"What does {one} say?",
            f"Which sound does {one} make?",
            f"What is the sound of {one}?",
        )
        yield from _all(
            "world",
            f"young {name}",
            f"A young {name} is called a {animal.young}.",
            f"What is a young {name} called?",
            f"What do you call a young {name}?",
            f"What is the name of a young {name}?",
        )
        yield from _all(
            "world",
            f"legs of {one}",
            f"{one.capitalize()} has {animal.legs} legs.",
            f"How many legs does {one} have?",
            f"How many legs has {one}?",
            f"On how many legs does {one} walk?",
        )


def _things() -> Iterator[Question]:
    for thing, colour in COLOURS.items():
        yield from _all(
            "world",
            f"colour of {thing}",
            f"{thing[0].upper()}{thing[1:]} is {colour}.",
            f"What colour is {thing}?",
            f"Which colour does {thing} have?",
            f"What is the colour of {thing}?",
        )
    for word, other in OPPOSITES.items():
        yield from _all(
            "world",
            f"opposite of {word}",
            f"The opposite of {word} is {other}.",
            f"What is the opposite of {word}?",
            f"Which word is the opposite of {word}?",
            f"Name the opposite of {word}.",
        )


def _calendar() -> Iterator[Question]:
    for what, names in (("day", DAYS), ("month", MONTHS)):
        for one, after in zip(names, [*names[1:], names[0]], strict=True):
            yield from _all(
                "world",
                f"after {one}",
                f"{after} comes after {one}.",
                f"Which {what} comes after {one}?",
                f"What {what} follows {one}?",
                f"Which {what} is next after {one}?",
            )
            yield from _all(
                "world",
                f"before {after}",
                f"{one} comes before {after}.",
                f"Which {what} comes before {after}?",
                f"What {what} is before {after}?",
                f"Which {what} is just before {after}?",
            )


def _sums() -> Iterator[Question]:
    for left in range(6):
        for right in range(6):
            one, other = NUMBERS[left], NUMBERS[right]
            yield from _all(
                "world",
                f"{one} plus {other}",
                f"{one.capitalize()} plus {other} is {NUMBERS[left + right]}.",
                f"What is {one} plus {other}?",
                f"How much is {one} plus {other}?",
                f"Add {one} and {other}.",
            )
