"""What is true in the village of Elmbrook, and the few things that its guide knows of the world around it."""

from dataclasses import dataclass
from typing import Final

__all__ = [
    "ANIMALS",
    "BY_NAME",
    "COLOURS",
    "DAYS",
    "MONTHS",
    "NUMBERS",
    "OPPOSITES",
    "VILLAGE",
    "VILLAGERS",
    "Animal",
    "Villager",
    "a",
    "listed",
]


def listed(text: str) -> tuple[str, ...]:
    """The words of ``text``; with commas in it, what is between them."""
    return tuple(text.split(", ") if "," in text else text.split())


@dataclass(frozen=True, slots=True)
class Villager:
    """One of the people of Elmbrook; ``hobby`` and ``home`` are the ends of sentences that begin with the name."""

    name: str
    pronoun: str
    job: str
    animal: str
    called: str
    home: str
    food: str
    hobby: str
    friend: str

    @property
    def possessive(self) -> str:
        """``his`` or ``her``."""
        return "his" if self.pronoun == "he" else "her"

    @property
    def object(self) -> str:
        """``him`` or ``her``."""
        return "him" if self.pronoun == "he" else "her"


VILLAGERS: Final = tuple(
    Villager(*row)
    for row in (
        ("Ada", "she", "baker", "cat", "Pepper", "by the old mill", "plum cake", "plays the flute", "Hugo"),
        ("Bruno", "he", "smith", "dog", "Rex", "next to the bridge", "onion soup", "carves small boats", "Clara"),
        ("Clara", "she", "teacher", "owl", "Luna", "behind the school", "apple pie", "looks at the stars", "Bruno"),
        ("Dario", "he", "doctor", "horse", "Storm", "near the well", "lentil stew", "reads long books", "Greta"),
        ("Edda", "she", "gardener", "hen", "Biddy", "on the hill", "pea soup", "draws flowers", "Paul"),
        ("Felix", "he", "fisher", "duck", "Paddle", "at the lake", "fried trout", "mends old nets", "Kira"),
        ("Greta", "she", "carpenter", "goat", "Willow", "in the wood", "goat cheese", "sings in the choir", "Dario"),
        ("Hugo", "he", "miller", "donkey", "Barley", "inside the windmill", "white bread", "plays cards", "Ada"),
        ("Ines", "she", "painter", "parrot", "Coco", "above the shop", "ripe pears", "dances in the square", "Leo"),
        ("Jonas", "he", "tailor", "rabbit", "Button", "under the clock tower", "potato cakes", "sews dolls", "Olga"),
        ("Kira", "she", "ferrywoman", "goose", "Snow", "on the island", "smoked eel", "counts the boats", "Felix"),
        ("Leo", "he", "shepherd", "sheep", "Cloud", "on the far meadow", "honey bread", "plays the horn", "Ines"),
        ("Mila", "she", "potter", "frog", "Puddle", "down at the river", "cherry jam", "walks along the river", "Nils"),
        ("Nils", "he", "beekeeper", "mouse", "Crumb", "beside the orchard", "nut cake", "plays the fiddle", "Mila"),
        ("Olga", "she", "clockmaker", "crow", "Tick", "across from the church", "hot cocoa", "solves riddles", "Jonas"),
        ("Paul", "he", "postman", "pig", "Truffle", "at the end of the lane", "mushroom pie", "writes poems", "Edda"),
    )
)
BY_NAME: Final = {person.name: person for person in VILLAGERS}

VILLAGE: Final = (
    (
        ("What is Elmbrook?", "Where are we?", "Tell me about Elmbrook.", "What kind of place is Elmbrook?"),
        "Elmbrook is a small village between a river and a green hill. Sixteen people live there.",
    ),
    (
        ("How many people live in Elmbrook?", "How many villagers are there?", "How big is Elmbrook?"),
        "Sixteen people live in Elmbrook.",
    ),
    (
        ("What is the river called?", "Which river flows through Elmbrook?", "What is the name of the river?"),
        "The river of Elmbrook is called the Silver Elm.",
    ),
    (
        ("When is the market?", "On which day is the market?", "Is there a market in Elmbrook?"),
        "The market of Elmbrook is every Saturday in the square.",
    ),
    (
        ("When is the big feast?", "Is there a feast in Elmbrook?", "What do people celebrate in Elmbrook?"),
        "The lantern feast of Elmbrook is on the first night of autumn.",
    ),
    (
        ("How do I get to Elmbrook?", "How can I come to Elmbrook?", "What is the way to Elmbrook?"),
        "Follow the river upstream to the old bridge. Elmbrook lies on the other side.",
    ),
)
"""Questions, and the answer to all of them."""


@dataclass(frozen=True, slots=True)
class Animal:
    """A kind of animal."""

    name: str
    sound: str
    young: str
    legs: str


ANIMALS: Final = tuple(
    Animal(*row)
    for row in (
        ("cow", "moo", "calf", "four"),
        ("dog", "woof", "puppy", "four"),
        ("cat", "meow", "kitten", "four"),
        ("sheep", "baa", "lamb", "four"),
        ("duck", "quack", "duckling", "two"),
        ("pig", "oink", "piglet", "four"),
        ("horse", "neigh", "foal", "four"),
        ("hen", "cluck", "chick", "two"),
        ("goose", "honk", "gosling", "two"),
        ("frog", "croak", "tadpole", "four"),
        ("owl", "hoot", "owlet", "two"),
        ("lion", "roar", "cub", "four"),
        ("mouse", "squeak", "pinkie", "four"),
        ("goat", "bleat", "kid", "four"),
    )
)

COLOURS: Final = {
    "the grass": "green",
    "the sky": "blue",
    "the snow": "white",
    "the night": "black",
    "the sun": "yellow",
    "blood": "red",
    "a lemon": "yellow",
    "a carrot": "orange",
    "a plum": "purple",
    "milk": "white",
    "coal": "black",
    "chocolate": "brown",
    "an elephant": "grey",
    "a flamingo": "pink",
    "the sea": "blue",
    "a tomato": "red",
    "a cucumber": "green",
    "wood": "brown",
}

_PAIRS: Final = (
    "hot cold, big small, old young, fast slow, day night, up down, wet dry, happy sad, loud quiet, full empty, "
    "hard soft, open closed, light dark, early late, near far, sweet sour, strong weak, first last"
)
OPPOSITES: Final = dict(pair for one, other in map(listed, listed(_PAIRS)) for pair in ((one, other), (other, one)))

DAYS: Final = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS: Final = listed("January February March April May June July August September October November December")
NUMBERS: Final = listed("zero one two three four five six seven eight nine ten")


def a(noun: str) -> str:
    """``noun`` with its article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
