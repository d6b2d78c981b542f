"""Small stories, made by a grammar: a hero, what happens to it, who helps, and how it ends."""

import random
import re
from typing import Final

from elmbrook.world import a, listed

__all__ = ["HEROES", "THINGS", "story", "story_about"]

HEROES: Final = listed(
    "fox mouse owl bear hedgehog rabbit duck goose cat dog frog squirrel badger sparrow otter mole "
    "beaver deer turtle bee"
)
_NAMES: Final = listed("Pip Nell Tuck Wren Moss Bree Finn Daisy Rollo Poppy Hazel Milo Tansy Bo Fern Otis")
THINGS: Final = listed("lantern kite boat drum bell map key hat ball flute basket scarf")

_GRAMMAR: Final = {
    "begin": (
        "Once upon a time there was {a:trait} {hero} called {name}.",
        "In {place} lived {a:trait} {hero} called {name}.",
        "There once was {a:trait} {hero} whose name was {name}.",
    ),
    "trait": ("little", "curious", "brave", "shy", "clever", "lazy", "cheerful", "tiny", "old", "stubborn"),
    "place": (
        "the deep wood",
        "a hollow tree",
        "a field behind Elmbrook",
        "a burrow near the river",
        "the garden of the baker",
        "a nest of straw",
        "a cave on the hill",
    ),
    "when": (
        "One morning",
        "One evening",
        "One rainy day",
        "On the first day of spring",
        "One cold night",
        "Late in the summer",
        "One day",
    ),
    "food": (
        "a nut",
        "a piece of bread",
        "an apple",
        "some berries",
        "a bowl of soup",
        "a slice of cake",
        "some honey",
    ),
    "where": (
        "under the old bridge",
        "behind a stone",
        "on top of the hill",
        "in the tall grass",
        "inside a hollow log",
        "at the edge of the lake",
        "between two roots",
    ),
    "goal": (
        "to see the sea",
        "to find the end of the rainbow",
        "to watch the sun rise from the hill",
        "to visit the lantern feast",
        "to hear the great bell of the town",
        "to count all the stars",
    ),
    "fear": ("the dark", "the storm", "the deep river", "the loud thunder", "the tall trees", "the north wind"),
    "cry": ("Please help me", "Help, help", "I cannot get out", "I have lost my way"),
    "deed": (
        "ran through the rain",
        "climbed over the rocks",
        "jumped across the stream",
        "crept into the cave",
        "walked through the night",
    ),
    "build": ("a boat", "a bridge", "a house of wood", "a kite", "a swing", "a small cart"),
    "trouble": ("broke in two", "fell over", "sank in the pond", "was far too small", "lost all its nails"),
    "advice": (
        "Take your time",
        "Use stronger wood",
        "Ask a friend to hold the other end",
        "Start with the big parts",
        "Tie it with a good rope",
    ),
    "end": (
        "From that day on {name} and the {helper} were best friends.",
        "That night {name} slept very well.",
        "And {name} never forgot that day.",
        "Then they sat down together and ate {food}.",
        "And if you listen, you can still hear them laugh.",
        "So {name} learned that two can do more than one.",
    ),
    "lost": (
        "{name} had {a:thing} and carried it everywhere.",
        "More than anything else {name} loved {a:thing} that {name} had found.",
        "{name} had a present from grandmother: {a:thing}.",
    ),
    "gone": ("{when} the {thing} was gone.", "{when} {name} woke up, and the {thing} was not there."),
    "looks": (
        "{name} looked {where} and {where}, but found nothing.",
        "{name} searched the whole day and was very sad.",
    ),
    "meets": (
        "Then {a:helper} came along.",
        "On the way home {name} met {a:helper}.",
        "{a:helper} sat {where} and heard everything.",
    ),
    "asks": (
        '"Have you seen my {thing}?" asked {name}.',
        '"What is wrong?" asked the {helper}. "My {thing} is gone," answered {name}.',
    ),
    "helps": ('"No, but I will help you," said the {helper}.', '"Two can look better than one," said the {helper}.'),
    "found": (
        "They found the {thing} {where}.",
        "Together they looked {where}, and there lay the {thing}.",
    ),
    "wish": ("{name} had one big wish: {goal}.", "Every night {name} dreamed of one thing: {goal}."),
    "far": (
        '"That is much too far," said the others.',
        '"You are too small for that," said everybody.',
        '"Nobody has ever done that," said the neighbours.',
    ),
    "goes": (
        "{when} {name} packed {food} and set out.",
        '"I will try," said {name}, took {a:thing} and went on the way.',
    ),
    "hungry": (
        "{where} sat {a:helper} that was tired and hungry.",
        "After a while {name} met {a:helper} that had lost its way.",
    ),
    "shares": (
        "{name} gave the {helper} {food}.",
        '"Come with me," said {name}, and they shared {food}.',
    ),
    "arrives": (
        "Together they walked on, and in the end the wish came true.",
        "The {helper} knew a short path, and before night they were there.",
        "They walked for three days, and it was more beautiful than any dream.",
    ),
    "afraid": ("There was only one thing that {name} feared: {fear}.", "{name} was afraid of {fear}."),
    "hears": (
        '{when} {name} heard a voice. "{cry}!" called {a:helper} {where}.',
        '{when} {a:helper} called from far away: "{cry}!"',
    ),
    "dares": (
        "{name} took a deep breath and {deed}.",
        "{name} thought of {fear}, shivered, and {deed} all the same.",
    ),
    "saves": (
        "There was the {helper}, cold and wet, and {name} brought it home.",
        "{name} held out a branch, and the {helper} climbed up.",
    ),
    "thanks": (
        '"You are the bravest {hero} I know," said the {helper}.',
        '"Thank you," said the {helper}. "Were you not afraid?" "Only a little," said {name}.',
    ),
    "plans": ("{when} {name} wanted to build {build}.", "{name} wanted to build {build} before the winter came."),
    "fails": ("But the first one {trouble}.", "{name} worked all day, but it {trouble}."),
    "again": ('"I will never learn it," said {name}.', "{name} tried again, and again it {trouble}."),
    "advises": (
        '"{advice}," said {a:helper} that had watched.',
        'Then {a:helper} came by and said: "{advice}."',
    ),
    "works": ("So they worked together, and this time it held.", "{name} did so, and in the evening it was ready."),
    "winter": ("The winter was long, and the snow lay deep.", "That winter was so cold that the river froze."),
    "knocks": (
        '{when} somebody knocked. "I have nothing to eat," said {a:helper}.',
        "{when} {a:helper} stood at the door and shivered.",
    ),
    "little": ("{name} had only {food} left.", "There was not much in the house, only {food}."),
    "gives": (
        '"Come in," said {name}, "it is enough for two."',
        "{name} cut it in half and gave away the bigger part.",
    ),
    "returns": (
        "In spring the {helper} came back and brought {a:thing}.",
        "When the snow was gone, the {helper} came with {a:thing} as a present.",
    ),
}
_PLOTS: Final = (
    ("begin", "lost", "gone", "looks", "meets", "asks", "helps", "found", "end"),
    ("begin", "wish", "far", "goes", "hungry", "shares", "arrives", "end"),
    ("begin", "afraid", "hears", "dares", "saves", "thanks", "end"),
    ("begin", "plans", "fails", "again", "advises", "works", "end"),
    ("begin", "winter", "knocks", "little", "gives", "returns", "end"),
)
_THING_PLOTS: Final = (_PLOTS[0], _PLOTS[4])
_SLOT: Final = re.compile(r"\{(a:)?(\w+)\}")


def story(draw: random.Random, hero: str = "", thing: str = "") -> str:
    """A story, about ``hero`` and with ``thing`` in it if they are given."""
    hero = hero or draw.choice(HEROES)
    values = {
        "hero": hero,
        "name": draw.choice(_NAMES),
        "helper": draw.choice([one for one in HEROES if one != hero]),
        "thing": thing or draw.choice(THINGS),
        "fear": draw.choice(_GRAMMAR["fear"]),
        "build": draw.choice(_GRAMMAR["build"]),
    }
    plot = draw.choice(_THING_PLOTS if thing else _PLOTS)
    return " ".join(_sentence(draw, draw.choice(_GRAMMAR[part]), values) for part in plot)


def story_about(draw: random.Random) -> tuple[str, str]:
    """A request for a story, and the story."""
    hero, thing = draw.choice(HEROES), draw.choice(THINGS)
    kind = draw.randrange(4)
    if kind == 0:
        wish = draw.choice(
            ("Tell me a story.", "Please tell me a story.", "I would like to hear a story.", "A story, please!")
        )
        return wish, story(draw)
    if kind == 3:
        wish = draw.choice(("Tell me a story about {} and {}.", "Write a short story about {} and {}."))
        return wish.format(a(hero), a(thing)), story(draw, hero, thing)
    wish = draw.choice(("Tell me a story about {}.", "Write a short story about {}.", "Do you know a story about {}?"))
    return wish.format(a(hero)), story(draw, hero)


def _sentence(draw: random.Random, pattern: str, values: dict[str, str]) -> str:
    """``pattern`` with its slots filled; nothing comes twice in it."""
    used: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        article, slot = match.groups()
        text = values.get(slot) or draw.choice([one for one in _GRAMMAR[slot] if one not in used])
        used.add(text)
        text = _SLOT.sub(fill, text)
        return a(text) if article else text

    text = _SLOT.sub(fill, pattern)
    return text[0].upper() + text[1:]
