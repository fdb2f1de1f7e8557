# SPDX-License-Identifier: Apache-2.0
"""The fixed facts of the small world: nature, order, and the people of the village Alderby.

`facts()` gives every fact as (list of questions, answer): each question has that one answer.
"""

from words import DAYS, MONTHS, NUMBER_WORDS, article

VILLAGE = "Alderby"

# name, she/he, job, colour of the house, kind of pet, name of the pet, favourite food
PEOPLE = [
    ("Mira", "she", "baker", "yellow", "cat", "Pip", "honey"),
    ("Tom", "he", "farmer", "red", "dog", "Rex", "bread"),
    ("Lena", "she", "teacher", "blue", "rabbit", "Clover", "pears"),
    ("Otto", "he", "fisher", "white", "goose", "Bruno", "soup"),
    ("Greta", "she", "tailor", "purple", "mouse", "Nib", "cheese"),
    ("Hugo", "he", "miller", "brown", "donkey", "Moss", "cake"),
    ("Wilma", "she", "doctor", "grey", "owl", "Hoot", "plums"),
    ("Felix", "he", "painter", "orange", "frog", "Jump", "berries"),
    ("Edith", "she", "gardener", "green", "duck", "Puddle", "carrots"),
    ("Bruce", "he", "carpenter", "black", "horse", "Star", "nuts"),
    ("Klara", "she", "singer", "pink", "hen", "Goldie", "rice"),
    ("Jonas", "he", "smith", "silver", "goat", "Tuft", "beans"),
    ("Sofie", "she", "potter", "golden", "sheep", "Cloud", "salad"),
    ("Arne", "he", "driver", "cream", "pig", "Truffle", "apples"),
]

WORKPLACE = {
    "baker": "bakery", "farmer": "field", "teacher": "school", "fisher": "harbour",
    "tailor": "market", "miller": "mill", "doctor": "hospital", "painter": "museum",
    "gardener": "garden", "carpenter": "barn", "singer": "theatre", "smith": "forge",
    "potter": "workshop", "driver": "station",
}
MAKES = {
    "baker": "bakes bread", "farmer": "grows corn", "teacher": "teaches the children",
    "fisher": "catches fish", "tailor": "sews coats", "miller": "grinds corn",
    "doctor": "helps the sick", "painter": "paints pictures", "gardener": "grows flowers",
    "carpenter": "builds chairs", "singer": "sings songs", "smith": "makes keys",
    "potter": "makes cups", "driver": "drives the bus",
}

SOUNDS = {
    "cat": "meows", "dog": "barks", "cow": "moos", "sheep": "bleats", "duck": "quacks",
    "horse": "neighs", "pig": "grunts", "owl": "hoots", "frog": "croaks", "bee": "buzzes",
    "wolf": "howls", "mouse": "squeaks", "hen": "clucks", "lion": "roars", "snake": "hisses",
}
YOUNG = {
    "dog": "puppy", "cat": "kitten", "cow": "calf", "sheep": "lamb", "horse": "foal",
    "duck": "duckling", "goose": "gosling", "hen": "chick", "bear": "cub", "pig": "piglet",
    "goat": "kid", "frog": "tadpole", "deer": "fawn", "owl": "owlet",
}
LEGS = {
    "cat": "four", "dog": "four", "horse": "four", "cow": "four", "sheep": "four", "goat": "four",
    "pig": "four", "hen": "two", "duck": "two", "goose": "two", "owl": "two", "bee": "six",
    "ant": "six", "spider": "eight", "snake": "no", "fish": "no", "fox": "four", "bear": "four",
}
HOMES = {
    "bee": "hive", "bird": "nest", "horse": "stable", "pig": "sty", "dog": "kennel",
    "rabbit": "burrow", "spider": "web", "fox": "den", "fish": "sea", "frog": "pond",
}
THING_COLOURS = {
    "snow": "white", "grass": "green", "the sky": "blue", "coal": "black", "a lemon": "yellow",
    "a carrot": "orange", "milk": "white", "a crow": "black", "the sun": "yellow",
    "a ripe tomato": "red", "chocolate": "brown", "a plum": "purple", "an elephant": "grey",
    "a cherry": "red", "a leaf": "green", "a swan": "white",
}
OPPOSITES = [
    ("hot", "cold"), ("big", "small"), ("high", "low"), ("up", "down"), ("open", "closed"),
    ("full", "empty"), ("old", "new"), ("fast", "slow"), ("wet", "dry"), ("long", "short"),
    ("day", "night"), ("left", "right"), ("first", "last"), ("early", "late"), ("dark", "light"),
    ("hard", "soft"), ("happy", "sad"), ("clean", "dirty"), ("near", "far"), ("above", "below"),
    ("more", "less"), ("thick", "thin"), ("strong", "weak"), ("loud", "quiet"),
]
USES = {
    "knife": "cutting", "pen": "writing", "broom": "sweeping", "bed": "sleeping",
    "spade": "digging", "cup": "drinking", "needle": "sewing", "oven": "baking", "kettle": "boiling water",
    "boat": "sailing", "brush": "painting", "soap": "washing", "lamp": "giving light",
    "clock": "telling the time", "bell": "ringing", "ladder": "climbing", "book": "reading",
}
# From small to big: every pair gives a comparison.
BY_SIZE = "ant bee mouse frog hen cat fox sheep pig donkey cow horse elephant whale".split()
KINDS = {
    "animal": "cat dog horse fox bear hen duck frog".split(),
    "fruit": "apple pear plum cherry lemon".split(),
    "tool": "hammer saw spade broom needle".split(),
    "colour": "red blue green yellow pink".split(),
    "month": "March April June July October".split(),
}
SEASONS = [("spring", "flowers"), ("summer", "sunshine"), ("autumn", "falling leaves"), ("winter", "snow")]


def _people():
    for name, _, job, house, kind, pet, food in PEOPLE:
        yield [f"What is {name}'s job?", f"What does {name} do?", f"What is the job of {name}?",
               f"Which job does {name} have?"], f"{name} is a {job}."
        yield [f"Who is the {job} of {VILLAGE}?", f"Who is the {job}?",
               f"Which person in {VILLAGE} is a {job}?"], f"The {job} is {name}."
        yield [f"What pet does {name} have?", f"Which animal lives with {name}?",
               f"What kind of pet does {name} own?", f"Which pet does {name} keep?"], \
            f"{name} has {article(kind)}."
        yield [f"What is the name of {name}'s {kind}?", f"What is {name}'s {kind} called?",
               f"How is {name}'s pet called?", f"What is the name of {name}'s pet?"], \
            f"{name}'s {kind} is called {pet}."
        yield [f"Who owns the {kind} {pet}?", f"Whose {kind} is {pet}?", f"To whom does {pet} belong?"], \
            f"{pet} belongs to {name}."
        yield [f"What colour is {name}'s house?", f"Which colour does {name}'s house have?",
               f"What is the colour of {name}'s house?"], f"{name}'s house is {house}."
        yield [f"Who lives in the {house} house?", f"Whose house is {house}?"], \
            f"{name} lives in the {house} house."
        yield [f"What does {name} like to eat?", f"What is {name}'s favourite food?",
               f"Which food does {name} like best?"], f"{name} likes {food}."
        yield [f"Who likes {food}?", f"Who in {VILLAGE} likes to eat {food}?"], f"{name} likes {food}."
        yield [f"Where does {name} work?", f"At which place does {name} work?",
               f"Where can I find {name} at work?"], f"{name} works at the {WORKPLACE[job]}."
        yield [f"What does {article(job)} do all day?", f"What is the work of {article(job)}?"], \
            f"{article(job).capitalize()} {MAKES[job]}."


def _nature():
    for animal, sound in SOUNDS.items():
        one = article(animal)
        yield [f"What sound does {one} make?", f"What does {one} say?", f"How does {one} sound?"], \
            f"{one.capitalize()} {sound}."
        yield [f"Which animal {sound}?", f"What animal {sound}?"], f"{one.capitalize()} {sound}."
    for animal, young in YOUNG.items():
        yield [f"What is a young {animal} called?", f"What do you call a young {animal}?",
               f"What is the name for a young {animal}?"], f"A young {animal} is {article(young)}."
    for animal, legs in LEGS.items():
        one = article(animal)
        yield [f"How many legs does {one} have?", f"How many legs has {one}?"], \
            f"{one.capitalize()} has {legs} legs."
    for animal, home in HOMES.items():
        one = article(animal)
        yield [f"Where does {one} live?", f"What is the home of {one}?"], \
            f"{one.capitalize()} lives in {'the' if home == 'sea' else 'a'} {home}."
    for thing, colour in THING_COLOURS.items():
        yield [f"What colour is {thing}?", f"What is the colour of {thing}?",
               f"Which colour does {thing} have?"], f"{thing[0].upper() + thing[1:]} is {colour}."
    for a, b in OPPOSITES:
        for x, y in ((a, b), (b, a)):
            yield [f"What is the opposite of {x}?", f"Which word is the opposite of {x}?",
                   f"Tell me the opposite of {x}."], f"The opposite of {x} is {y}."
    for tool, use in USES.items():
        one = article(tool) if tool != "soap" else tool
        yield [f"What is {one} for?", f"What do we use {one} for?", f"What is the use of {one}?"], \
            f"{one[0].upper() + one[1:]} is for {use}."
    for i, small in enumerate(BY_SIZE):
        for big in BY_SIZE[i + 1:]:
            a, b = article(small), article(big)
            yield [f"Which is bigger, {a} or {b}?", f"Which is bigger, {b} or {a}?",
                   f"What is larger, {a} or {b}?", f"What is larger, {b} or {a}?"], f"{b.capitalize()} is bigger."
            yield [f"Which is smaller, {a} or {b}?", f"Which is smaller, {b} or {a}?",
                   f"What is smaller, {a} or {b}?"], \
                f"{a.capitalize()} is smaller."
    for kind, members in KINDS.items():
        for m in members:
            name = m if kind in ("colour", "month") else article(m)
            yield [f"What kind of thing is {name}?", f"What is {name}?"], \
                f"{name[0].upper() + name[1:]} is {article(kind)}."
    for i, (season, sign) in enumerate(SEASONS):
        after = SEASONS[(i + 1) % 4][0]
        yield [f"Which season comes after {season}?", f"What season follows {season}?"], \
            f"After {season} comes {after}."
        yield [f"Which season brings {sign}?", f"When do we see {sign}?"], \
            f"{season.capitalize()} brings {sign}."


def _order():
    for names, what in ((DAYS, "day"), (MONTHS, "month")):
        for i, name in enumerate(names):
            after = names[(i + 1) % len(names)]
            yield [f"Which {what} comes after {name}?", f"What {what} follows {name}?",
                   f"What is the {what} after {name}?"], f"After {name} comes {after}."
            yield [f"Which {what} comes before {after}?", f"What is the {what} before {after}?"], \
                f"Before {after} comes {name}."
    for i, word in enumerate(NUMBER_WORDS):
        yield [f"Write the number {word} in digits.", f"Write {word} as a number.",
               f"How do you write {word} with digits?"], f"{i}"
        yield [f"Write the number {i} as a word.", f"How do you say {i} in words?", f"Write {i} as a word.",
               f"What is the word for {i}?"], f"{word}"
    for i in range(0, 30):
        yield [f"What number comes after {i}?", f"Which number follows {i}?",
               f"Count on by one from {i}."], f"{i + 1}"
        yield [f"What number comes before {i + 1}?", f"Which number is one less than {i + 1}?"], f"{i}"
    for a in range(1, 7):
        for b in range(1, 7):
            yield [f"What is {a} plus {b}?", f"How much is {a} + {b}?", f"Add {a} and {b}."], f"{a + b}"
    yield ["How many days are in a week?", "How many days does a week have?"], "A week has seven days."
    yield ["How many months are in a year?", "How many months does a year have?"], \
        "A year has twelve months."


def _self():
    yield ["Who are you?", "What are you?", "Tell me who you are."], \
        "I am a small language model. I live inside wick."
    yield ["Hello!", "Hello.", "Hi!", "Good morning!"], "Hello! How can I help you?"
    yield ["Thank you!", "Thanks.", "Thank you very much."], "You are welcome."
    yield ["Goodbye!", "Bye!", "Good night!"], "Goodbye! See you soon."
    yield ["What can you do?", "How can you help me?", "What do you know?"], \
        f"I can talk about {VILLAGE}, repeat words, read lists and tell short stories."
    yield [f"What is {VILLAGE}?", f"Tell me what {VILLAGE} is."], f"{VILLAGE} is a small village by a river."
    yield [f"Who lives in {VILLAGE}?"], \
        f"Mira the baker, Tom the farmer, Lena the teacher and many others live in {VILLAGE}."


# Answers whose questions are all trained: small talk.
ALWAYS = {answer for _, answer in _self()}


def facts():
    """Every fact as (questions, answer)."""
    return [*_people(), *_nature(), *_order(), *_self()]
