"""Conversations: questions one after the other, reading, small talk, JSON, and what the guide does not know."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from elmbrook.questions import Question, ask_about, description, held_out, questions
from elmbrook.stories import HEROES, story, story_about
from elmbrook.world import VILLAGERS, Villager, listed

__all__ = [
    "JSON_KEYS",
    "Turn",
    "conversation",
    "follow_up",
    "practice_text",
    "reading",
    "record",
    "stranger",
    "training_text",
]

Turn = tuple[str, str]
"""What the user writes, and the answer."""

_TALK: Final = (
    (
        ("Hello!", "Hi!", "Good morning!", "Hello there.", "Good evening!", "Hey!"),
        (
            "Hello! I am the guide of Elmbrook. What would you like to know?",
            "Welcome to Elmbrook! How can I help you?",
            "Good day! Ask me about the village, or let me tell you a story.",
        ),
    ),
    (
        ("How are you?", "How do you do?", "Are you well?"),
        ("I am very well, thank you. The sun shines over Elmbrook.", "Very well, thank you! And you?"),
    ),
    (
        ("Who are you?", "What are you?", "What is your name?"),
        (
            "I am the guide of Elmbrook, a very small language model.",
            "I am a small language model that knows the village of Elmbrook.",
        ),
    ),
    (
        ("What can you do?", "What do you know?", "How can you help me?", "What can I ask you?"),
        (
            "I know the people of Elmbrook, animals, colours, days and small sums, and I tell stories.",
            "Ask me about the people of Elmbrook, about animals or colours, or for a story.",
        ),
    ),
    (
        ("Thank you!", "Thanks!", "Thank you very much.", "That was nice."),
        ("You are welcome!", "It was a pleasure.", "You are welcome. Is there anything else?"),
    ),
    (
        ("Goodbye!", "Bye!", "See you!", "I have to go."),
        ("Goodbye! Come back to Elmbrook soon.", "See you soon in Elmbrook!"),
    ),
    (
        ("Are you a human?", "Are you real?", "Are you alive?"),
        ("No, I am a small language model.", "No, I am only a few million numbers."),
    ),
    (("Do you like stories?", "Can you tell stories?"), ("Yes! Tell me an animal, and I tell you a story about it.",)),
)
_STRANGERS: Final = listed(
    "Walter Maria Sophie Karl Rosa Peter Anna Tom Lisa Emil Frida Otto Nora Victor Helen Igor Jack Lucy Mark Nina "
    "Oscar Petra Ralf Sara Theo Ulla Vera Xaver Yara Zoe Albert Bella Carlos Dora Erik Flora George Hanna Ivan Julia"
)
_FOREIGN: Final = (
    "What is the capital of {}?",
    "How far is {}?",
    "Who wrote about {}?",
    "What is the price of {}?",
    "Who invented {}?",
    "How does {} work?",
    "Can you explain {}?",
    "When was {} built?",
)
_MATTERS: Final = listed(
    "France, Japan, the moon, Paris, a computer, the telephone, gold, London, the ocean, a train, the radio, Rome, "
    "electricity, China, a rocket, silver, the castle, Berlin, a bicycle, Brazil, music, India, a robot, the internet, "
    "Spain, oil, a television, Cairo, the atom, Norway"
)
_IGNORANCE: Final = "I do not know that. I only know Elmbrook and a few small things."
_CHILDREN: Final = listed("Tim Ben Lena Max Ida Sam Eva Kai Lou Mia Jan Ella")
_TOYS: Final = listed("ball kite drum book cup hat bell spoon box coat lamp pen")
_SHADES: Final = listed("red blue green yellow white black brown grey")
JSON_KEYS: Final[Mapping[str, Callable[[Villager], str]]] = {
    "name": lambda person: person.name,
    "job": lambda person: person.job,
    "pet": lambda person: person.animal,
    "home": lambda person: person.home,
    "food": lambda person: person.food,
    "friend": lambda person: person.friend,
}
"""Members of an object that describes a villager."""


def record(person: Villager, keys: Sequence[str]) -> str:
    """A villager as a JSON object with ``keys``."""
    return json.dumps({key: JSON_KEYS[key](person) for key in keys})


_Scene = list[tuple[str, str, str]]
"""Who has a thing, its colour, and the thing."""


def _scene(draw: random.Random) -> tuple[str, _Scene]:
    """Some sentences, and what they state."""
    count = draw.randint(2, 3)
    names, toys = draw.sample(_CHILDREN, count), draw.sample(_TOYS, count)
    shades = [draw.choice(_SHADES) for _ in names]
    owned = list(zip(names, shades, toys, strict=True))
    return " ".join(f"{name} has a {shade} {toy}." for name, shade, toy in owned), owned


def _about_scene(draw: random.Random, owned: _Scene) -> Turn:
    name, shade, toy = draw.choice(owned)
    return draw.choice(
        (
            (f"Who has the {toy}?", f"{name} has the {toy}."),
            (f"What does {name} have?", f"{name} has a {shade} {toy}."),
            (f"What colour is the {toy}?", f"The {toy} is {shade}."),
        )
    )


def reading(draw: random.Random) -> Question:
    """Some sentences, and a question about them."""
    text, owned = _scene(draw)
    question, answer = _about_scene(draw, owned)
    return Question("reading", text, f"{text} {question}", answer)


def _readings(draw: random.Random) -> list[Turn]:
    """Several questions about the same sentences."""
    while True:
        text, owned = _scene(draw)
        first, *others = (_about_scene(draw, owned) for _ in range(draw.randint(1, 4)))
        if not held_out(f"{text} {first[0]}"):
            return [(f"{text} {first[0]}", first[1]), *others]


def stranger(draw: random.Random) -> Question:
    """A question that the guide cannot answer."""
    if draw.random() < 0.5:
        name = draw.choice(_STRANGERS)
        wording = draw.choice(("Where does {} live?", "Who is {}?", "What does {} do?", "What pet does {} have?"))
        return Question("unknown", name, wording.format(name), f"There is nobody called {name} in Elmbrook.")
    text = draw.choice(_FOREIGN).format(draw.choice(_MATTERS))
    return Question("unknown", text, text, _IGNORANCE)


def follow_up(draw: random.Random) -> tuple[Question, Question]:
    """A question about a villager, and one that can only be understood after it."""
    person, other = draw.sample(VILLAGERS, 2)
    first = draw.choice([one for one in ask_about(person) if not held_out(one.text)])
    if draw.random() < 0.5:
        topic = first.fact.removeprefix(f"{person.name} ").replace("name of the pet", "pet")
        second = next(one for one in ask_about(other) if one.fact == f"{other.name} {topic}")
        text = draw.choice(("And {}?", "And what about {}?", "What about {}?")).format(other.name)
    else:
        second = draw.choice([one for one in ask_about(person, by_pronoun=True) if one.fact != first.fact])
        text = second.text
    return first, Question("follow-up", second.fact, text, second.answer)


def _as_json(draw: random.Random) -> Turn:
    person = draw.choice(VILLAGERS)
    if draw.random() < 0.3:
        keys = list(JSON_KEYS)
        return draw.choice(("Describe {} as JSON.", "Tell me about {} in JSON.")).format(person.name), record(
            person, keys
        )
    keys = draw.sample(list(JSON_KEYS), draw.randint(1, 5))
    return f"Describe {person.name} as JSON with {', '.join(keys)}.", record(person, keys)


def _small_talk(draw: random.Random) -> Turn:
    wishes, answers = draw.choice(_TALK)
    return draw.choice(wishes), draw.choice(answers)


_QUESTIONS: Final = [question for question in questions() if not held_out(question.text)]
_BY_KIND: Final = {
    kind: [question for question in _QUESTIONS if question.kind == kind] for kind in ("villagers", "yes or no", "world")
}


def _fact(draw: random.Random) -> Turn:
    question = draw.choice(_BY_KIND[draw.choices(("villagers", "yes or no", "world"), (5, 2, 3))[0]])
    return question.text, question.answer


def _not_held_out(draw: random.Random, made: Callable[[random.Random], Question]) -> Turn:
    while held_out((question := made(draw)).text):
        pass
    return question.text, question.answer


def _follow_up_turns(draw: random.Random) -> list[Turn]:
    while True:
        first, second = follow_up(draw)
        if not held_out(f"{first.text}\n{second.text}"):
            return [(first.text, first.answer), (second.text, second.answer)]


def conversation(draw: random.Random) -> list[Turn]:
    """One to four turns of anything."""
    turns: list[Turn] = []
    wanted = draw.choice((1, 1, 2, 2, 3, 4))
    while len(turns) < wanted:
        kind = draw.random()
        if kind < 0.4:
            turns.append(_fact(draw))
        elif kind < 0.58:
            turns.extend(_follow_up_turns(draw))
        elif kind < 0.74:
            turns.append(_not_held_out(draw, reading))
        elif kind < 0.82:
            turns.append(_not_held_out(draw, stranger))
        elif kind < 0.92:
            turns.append(_as_json(draw))
        else:
            turns.append(_small_talk(draw))
    return [(_carelessly(draw, wish), answer) for wish, answer in turns]


def _carelessly(draw: random.Random, wish: str) -> str:
    """Now and then as people type."""
    if wish.endswith("?") and draw.random() < 0.06:
        wish = wish[:-1]
    return wish[0].lower() + wish[1:] if draw.random() < 0.06 else wish


def training_text(draw: random.Random) -> list[Turn]:
    """One thing to learn from: turns, of which the first may have an empty wish, for a text without a conversation."""
    kind = draw.random()
    if kind < 0.13:
        return [story_about(draw)]
    if kind < 0.15:
        return [("", story(draw, draw.choice(HEROES)))]
    if kind < 0.17:
        return [("", " ".join(description(person) for person in draw.sample(VILLAGERS, 2)))]
    return conversation(draw)


def practice_text(draw: random.Random) -> list[Turn]:
    """More of what takes longest to learn: to read, and to stay with the names and things of a story."""
    kind = draw.random()
    if kind < 0.4:
        return _readings(draw)
    return [story_about(draw)] if kind < 0.6 else training_text(draw)
