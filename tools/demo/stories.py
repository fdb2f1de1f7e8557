# SPDX-License-Identifier: Apache-2.0
"""Short stories and descriptions: the plain English of the base model.

A story follows a plot (a thing is lost and found, a gift, a trip, a day's work, a meal, the
weather) whose sentences keep the same people, things and places from start to end.
"""

import words as w
from world import MAKES, PEOPLE, VILLAGE, WORKPLACE

_TIMES = ["One morning", "One day", "One evening", "On Monday", "On Friday", "On Sunday", "In spring",
          "In winter", "Last week", "Early in the day", "After lunch", "Late in the day"]
_WEATHER = [("It was sunny.", "The sun was warm."), ("It was raining.", "The rain fell on the roof."),
            ("It was cold.", "There was snow on the road."), ("It was windy.", "The wind was strong.")]
_ENDINGS = ["{A} was happy.", "They were all happy.", "It was a good day.", "Then {a} went home.",
            "{A} smiled and went to bed.", "Everyone laughed.", "{A} will not forget that day."]


class Hero:
    """Someone of the village, or a person known only by name."""

    def __init__(self, rng, name=None):
        known = {p[0]: p for p in PEOPLE}
        if name is None:
            name = rng.choice(list(known)) if rng.random() < 0.6 else rng.choice(w.FIRST_NAMES)
        self.name = name
        person = known.get(name)
        if person:
            _, self.he, self.job, _, self.pet, self.pet_name, self.food = person
        else:
            self.he = "she" if name in w.WOMEN else "he"
            self.job, self.pet_name, self.pet = None, None, rng.choice(w.ANIMALS)
            self.food = rng.choice(w.FOODS)
        self.him = "her" if self.he == "she" else "him"
        self.his = "her" if self.he == "she" else "his"

    def intro(self, rng):
        r = rng.random()
        if self.job and r < 0.35:
            return f"{self.name} is the {self.job} of {VILLAGE}. {self.he.capitalize()} {MAKES[self.job]}."
        if self.job and r < 0.6:
            return f"{self.name} is {w.article(self.job)} and has {w.article(self.pet)} called {self.pet_name}."
        if r < 0.8:
            return f"{self.name} lives near the {rng.choice(w.PLACES)}."
        return f"{self.name} likes {self.food}."


def _thing(rng):
    return f"{rng.choice(w.COLOURS)} {rng.choice(w.OBJECTS)}"


def _lost(rng, h, f):
    thing = _thing(rng)
    a, b, c = rng.sample(w.PLACES, 3)
    lines = [f"{rng.choice(_TIMES)} {h.name} could not find {h.his} {thing}."]
    lines.append(f"{h.he.capitalize()} looked in the {a}, but the {thing.split()[1]} was not there.")
    if rng.random() < 0.6:
        lines.append(f"Then {h.he} looked near the {b}, but it was not there.")
    lines.append(f"{h.name} asked {f.name} for help.")
    lines.append(rng.choice([
        f"{f.name} said, 'I saw the {thing} at the {c}.'",
        f"'Look at the {c},' said {f.name}.",
        f"'Is it a {thing}?' asked {f.name}. 'It is at the {c}.'"]))
    lines.append(f"They went to the {c} and found the {thing}.")
    return lines


def _gift(rng, h, f):
    thing = _thing(rng)
    place = rng.choice(w.PLACES)
    price = rng.randint(2, 20)
    lines = [f"{rng.choice(_TIMES)} {h.name} wanted to give {f.name} a gift."]
    lines.append(f"{h.he.capitalize()} went to the {place} and saw {w.article(thing)}.")
    lines.append(rng.choice([
        f"The {thing.split()[1]} cost {price} coins, and {h.name} paid {price} coins.",
        f"'How much is the {thing.split()[1]}?' asked {h.name}. 'It is {price} coins,' said the seller."]))
    lines.append(f"{h.name} gave the {thing} to {f.name}.")
    lines.append(rng.choice([f"'Thank you, {h.name}!' said {f.name}.",
                             f"{f.name} liked the {thing} very much."]))
    return lines


def _trip(rng, h, f):
    a, b = rng.sample(w.PLACES, 2)
    animal = rng.choice(w.ANIMALS)
    n = rng.randint(2, 9)
    plural = {"sheep": "sheep", "deer": "deer", "mouse": "mice", "goose": "geese", "wolf": "wolves",
              "fox": "foxes"}.get(animal, animal + "s")
    lines = [f"{rng.choice(_TIMES)} {h.name} and {f.name} walked from the {a} to the {b}."]
    lines.append(rng.choice([s for s, _ in _WEATHER]))
    lines.append(f"On the way they saw {n} {plural}.")
    lines.append(rng.choice([
        f"{h.name} counted the {plural}: " + ", ".join(str(i) for i in range(1, n + 1)) + ".",
        f"'There are {n} {plural},' said {h.name}.",
        f"{f.name} gave the {plural} some {rng.choice(w.FOODS)}."]))
    lines.append(f"At the {b} they sat down and ate {h.food}.")
    return lines


def _work(rng, h, f):
    if not h.job:
        return _gift(rng, h, f)
    place = WORKPLACE[h.job]
    thing = _thing(rng)
    lines = [f"Every day {h.name} goes to the {place}.", f"{h.he.capitalize()} {MAKES[h.job]} there."]
    lines.append(f"{rng.choice(_TIMES)} {f.name} came to the {place} with {w.article(thing)}.")
    lines.append(f"'Can I leave my {thing.split()[1]} here?' asked {f.name}.")
    lines.append(f"'Yes,' said {h.name}. 'Put the {thing} next to the door.'")
    return lines


def _meal(rng, h, f):
    a, b, c = rng.sample(w.FOODS, 3)
    lines = [f"{rng.choice(_TIMES)} {h.name} cooked for {f.name}."]
    lines.append(f"{h.he.capitalize()} needed {a}, {b} and {c}.")
    lines.append(f"{h.name} had the {a} and the {b}, but no {c}.")
    lines.append(f"So {f.name} went to the market and came back with {c}.")
    lines.append(f"They ate the {a}, the {b} and the {c} together.")
    return lines


def _weather(rng, h, f):
    (state, detail) = rng.choice(_WEATHER)
    thing = rng.choice(["coat", "hat", "blanket", "bag"])
    colour = rng.choice(w.COLOURS)
    lines = [f"{rng.choice(_TIMES)} {h.name} looked out of the window.", f"{state} {detail}"]
    lines.append(f"'Where is my {colour} {thing}?' asked {h.name}.")
    lines.append(f"{f.name} said, 'Your {colour} {thing} is on the chair.'")
    lines.append(f"{h.name} took the {colour} {thing} and went out.")
    return lines


def _pet(rng, h, f):
    name = h.pet_name or rng.choice(["Spot", "Coco", "Fluff", "Dot", "Sunny", "Bim"])
    place = rng.choice(w.PLACES)
    lines = [f"{h.name} has {w.article(h.pet)}. The {h.pet} is called {name}."]
    lines.append(f"{rng.choice(_TIMES)} {name} ran to the {place}.")
    lines.append(f"'{name}, come back!' called {h.name}.")
    lines.append(rng.choice([
        f"But {name} did not come back, because there was {w.article(rng.choice(w.SIZES[:8]))} fish by the {place}.",
        f"{f.name} saw {name} at the {place} and brought the {h.pet} home."]))
    lines.append(f"{h.name} gave {name} some water and {name} slept.")
    return lines


def _sign(rng, h, f):
    sign = rng.choice(w.SIGN_PHRASES)
    place = rng.choice(w.PLACES)
    lines = [f"{rng.choice(_TIMES)} {h.name} put up a sign at the {place}.", f"The sign says {sign}."]
    lines.append(f"{f.name} came to the {place} and read the sign: '{sign}'.")
    lines.append(rng.choice([f"'Why does it say {sign}?' asked {f.name}.",
                             f"'{sign},' read {f.name}. 'Good to know!'"]))
    return lines


_PLOTS = [_lost, _gift, _trip, _work, _meal, _weather, _pet, _sign]


def story(rng, name=None):
    """A story of five to eight sentences; about `name` when that is given."""
    h = Hero(rng, name)
    f = Hero(rng)
    while f.name == h.name:
        f = Hero(rng)
    lines = [h.intro(rng)] if rng.random() < 0.5 else []
    lines += rng.choice(_PLOTS)(rng, h, f)
    if rng.random() < 0.7:
        lines.append(rng.choice(_ENDINGS).format(A=h.name, a=h.he))
    return " ".join(lines)


def list_text(rng):
    """A list, said more than once: reading on means copying."""
    kind = rng.random()
    if kind < 0.35:
        items = rng.sample(w.OBJECTS, rng.randint(2, 5))
    elif kind < 0.7:
        items = [w.invent(rng) for _ in range(rng.randint(2, 4))]
    else:
        items = [w.identifier(rng) for _ in range(rng.randint(2, 4))]
    name = rng.choice(PEOPLE)[0]
    listed = ", ".join(items)
    return rng.choice([
        f"{name} wrote a list: {listed}. Then {name} read it out: {listed}.",
        f"The list has {len(items)} items: {listed}. Here it is again: {listed}.",
        f"On the paper it says ({listed}). Below it says ({listed}) once more.",
        f"Say {listed}; and again {listed}; and again {listed};",
        f"The labels are " + w.join_and(f"'{i}'" for i in items) + f". {name} reads: {listed}.",
        f"{name} has " + w.join_and(items) + f". The first is {items[0]} and the last is {items[-1]}."])


def rule_text(rng):
    """Signs of comparison and arithmetic in plain notes."""
    a, b = sorted(rng.sample(range(1, 400), 2))
    thing = rng.choice(w.NUMBER_COLUMNS)
    name = rng.choice(PEOPLE)[0]
    return rng.choice([
        f"{b} is greater than {a}, so we write {b} > {a}. {a} is less than {b}, so we write {a} < {b}.",
        f"The {thing} is {b}. We write {thing} = {b}. It is above {a}: {b} > {a}.",
        f"If the {thing} is below {b}, {name} writes {thing} < {b}; if it is above {b}, {name} writes {thing} > {b}.",
        f"{name} adds: {a % 10} + {b % 10} = {a % 10 + b % 10}.",
        f"A star (*) means that the seat is free. Seat {a} (*) is free; seat {b} is not.",
        f"A star * marks the best {thing}: {b} *. The others are {a} and {a + 1}."])
