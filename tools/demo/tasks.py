# SPDX-License-Identifier: Apache-2.0
"""Questions whose answer stands in the question: copying, lists, comparing, reading, tables.

Each task returns a list of (user, assistant) turns of one conversation. They teach the model to
look things up in what it was told, which is what lets it follow names it has never seen.
"""

import words as w

UP = ["above", "more than", "greater than", "over", "higher than"]
DOWN = ["below", "less than", "under", "smaller than", "lower than"]
SAME = ["equal to", "exactly", "the same as"]


def word(rng):
    r = rng.random()
    if r < 0.2:
        return rng.choice(w.OBJECTS)
    if r < 0.3:
        return rng.choice(w.NUMBER_COLUMNS)
    if r < 0.4:
        return rng.choice(list(w.TEXT_COLUMNS))
    if r < 0.5:
        return rng.choice(w.PLURALS)
    if r < 0.58:
        return rng.choice(w.CITIES + w.FIRST_NAMES + w.COUNTRIES)
    if r < 0.64:
        return rng.choice(w.COLOURS + w.FOODS + w.STATUSES + w.SHAPES + w.MATERIALS)
    if r < 0.80:
        return w.invent(rng)
    if r < 0.88:
        return w.invent(rng).capitalize()
    return w.identifier(rng)


def some_words(rng, low, high):
    out = []
    n = rng.randint(low, high)
    while len(out) < n:
        x = word(rng)
        if x not in out:
            out.append(x)
    return out


def repeat(rng):
    items = some_words(rng, 1, 7)
    if rng.random() < 0.2:
        items = [str(w.number(rng)) if rng.random() < 0.5 else i for i in items]
    sep = rng.choice([", ", " ", ", ", "; "])
    listed = sep.join(items)
    ask = rng.choice(["Repeat the words: {}", "Say this again: {}", "Copy this: {}", "Write {}",
                      "Repeat after me: {}", "Please copy the line {}"])
    turns = [(ask.format(listed), listed)]
    if len(items) > 1 and rng.random() < 0.4:
        turns.append(("Now in quotes.", sep.join(f"'{i}'" for i in items)))
    elif len(items) > 1 and rng.random() < 0.4:
        turns.append(("Now backwards.", sep.join(reversed(items))))
    return turns


def mark(rng):
    """One word put into quotes, brackets, capitals, after a heading, before a sign."""
    turns = []
    for _ in range(rng.randint(1, 3)):
        x = word(rng)
        r = rng.randrange(9)
        if r < 2:
            ask = rng.choice(["Put the word {} in quotes.", "Write {} in quotes.", "Quote the word {}."])
            turns.append((ask.format(x), f"'{x}'"))
        elif r == 2:
            ask = rng.choice(["Put the word {} in brackets.", "Write {} in brackets."])
            turns.append((ask.format(x), f"({x})"))
        elif r == 3:
            cap = rng.choice(w.CAPITAL_WORDS)
            turns.append((rng.choice(["Write the word {} in capital letters.", "Write {} in capitals.",
                                      "Make {} upper case."]).format(cap.lower()), cap))
        elif r == 4:
            head = rng.choice(["BOX", "BAG", "ROOM", "SHELF", "DOOR", "CARD", "ROW", "SHOP"])
            turns.append((rng.choice(["Write {1} and then {0} in brackets.",
                                      "Put {0} in brackets behind {1}."]).format(x, head), f"{head}({x})"))
        elif r == 5:
            turns.append((f"Write {x} and end with a semicolon.", f"{x};"))
        elif r == 6:
            y = word(rng)
            turns.append((rng.choice([f"Join {x} and {y} with an underscore.",
                                      f"Write {x} {y} with an underscore."]), f"{x}_{y}"))
        elif r == 7:
            y = word(rng)
            sign, name = rng.choice([("=", "an equals sign"), (">", "a greater sign"),
                                     ("<", "a less sign"), ("*", "a star"), ("+", "a plus sign")])
            turns.append((f"Write {x} and {y} with {name} between them.", f"{x} {sign} {y}"))
        else:
            long, short = rng.choice(list(w.SHORT_FORMS.items()))
            turns.append((rng.choice([f"What is the short form of {long}?", f"Write {long} in short.",
                                      f"Give the short form of {long}."]), short))
    return turns


def condition(rng):
    """'weight above 40' -> 'weight > 40'; 'city is Oslo' -> "city is 'Oslo'"."""
    turns = []
    for _ in range(rng.randint(1, 3)):
        x = rng.choice(w.NUMBER_COLUMNS) if rng.random() < 0.6 else w.identifier(rng)
        words, sign = rng.choice([(UP, ">"), (DOWN, "<"), (SAME, "=")])
        phrase, n = rng.choice(words), w.number(rng)
        said = rng.choice([f"{x} {w.be(x)} {phrase} {n}", f"{x} {phrase} {n}", f"the {x} {w.be(x)} {phrase} {n}"])
        ask = rng.choice(["Write with a sign: {}.", "Use a sign for this: {}.", "Write in short: {}."])
        turns.append((ask.format(said), f"{x} {sign} {n}"))
    return turns


def in_list(rng):
    items = some_words(rng, 3, 6)
    listed = ", ".join(items)
    turns = []
    for k in range(rng.randint(1, 4)):
        i = rng.randrange(len(items))
        r = rng.randrange(7)
        if r < 2:
            ask, answer = f"What is the {w.ORDINALS[i]} item?", items[i]
        elif r == 2 and i + 1 < len(items):
            ask, answer = f"Which item comes after {items[i]}?", items[i + 1]
        elif r == 3 and i > 0:
            ask, answer = f"Which item comes before {items[i]}?", items[i - 1]
        elif r == 4:
            ask, answer = "What is the last item?", items[-1]
        elif r == 5:
            ask, answer = "How many items are there?", str(len(items))
        else:
            ask, answer = "What is the first item?", items[0]
        if k == 0:
            ask = rng.choice([f"The list has the items {listed}. ", f"Here is a list: {listed}. ",
                              f"I have {listed}. "]) + ask
        turns.append((ask, answer))
    return turns


def compare(rng):
    turns = []
    for _ in range(rng.randint(2, 4)):
        a, b = (10 * tens + rng.randint(0, 9) for tens in rng.sample(range(0, 10), 2))
        r = rng.randrange(5)
        if r == 0:
            turns.append((f"Which number is larger, {a} or {b}?", str(max(a, b))))
        elif r == 1:
            turns.append((f"Which number is smaller, {a} or {b}?", str(min(a, b))))
        elif r == 2:
            turns.append((f"Write {a} and {b} with the right sign.", f"{a} {'>' if a > b else '<'} {b}"))
        else:
            up = rng.random() < 0.5
            phrase = rng.choice((UP if up else DOWN)[:4])
            right = (a > b) == up
            turns.append((f"Is {a} {phrase} {b}?",
                          f"Yes, {a} is {phrase} {b}." if right else f"No, {a} is not {phrase} {b}."))
    return turns


def _names(rng, n):
    return rng.sample(w.FIRST_NAMES, n)


def have(rng):
    """People and what they have; who, what, which colour, how many, who has more."""
    n = rng.randint(2, 3)
    people = _names(rng, n)
    things = rng.sample(w.OBJECTS, n)
    colours = rng.sample(w.COLOURS, n)
    text = " ".join(f"{p} has {w.article(c + ' ' + t)}." for p, c, t in zip(people, colours, things))
    turns = []
    for k in range(rng.randint(2, 5)):
        i = rng.randrange(n)
        p, c, t = people[i], colours[i], things[i]
        ask, answer = rng.choice([
            (f"Who has the {t}?", f"{p} has the {t}."), (f"Whose is the {c} {t}?", f"The {c} {t} is {p}'s."),
            (f"What does {p} have?", f"{p} has {w.article(c + ' ' + t)}."),
            (f"What colour is the {t}?", f"The {t} is {c}."),
            (f"What colour is {p}'s {t}?", f"{p}'s {t} is {c}."),
            (f"What is {c}?", f"The {t} is {c}."),
            (f"Who has the {c} {t}?", f"{p} has the {c} {t}.")])
        turns.append((text + " " + ask if k == 0 else ask, answer))
    return turns


def amounts(rng):
    people = _names(rng, 2)
    food = rng.choice([f for f in w.FOODS if f.endswith("s")] + w.PLURALS)
    a, b = (10 * tens + rng.randint(2, 9) for tens in rng.sample(range(0, 10), 2))
    text = f"{people[0]} has {a} {food}. {people[1]} has {b} {food}."
    more, less = (people if a > b else people[::-1])
    turns = []
    for k in range(rng.randint(2, 4)):
        i = rng.randrange(2)
        ask, answer = rng.choice([
            (f"How many {food} does {people[i]} have?", f"{people[i]} has {(a, b)[i]} {food}."),
            (f"Who has {(a, b)[i]} {food}?", f"{people[i]} has {(a, b)[i]} {food}."),
            (f"Who has more {food}?", f"{more} has more {food}."),
            (f"Who has the most {food}?", f"{more} has the most {food}."),
            (f"Who has the fewest {food}?", f"{less} has the fewest {food}.")])
        turns.append((text + " " + ask if k == 0 else ask, answer))
    return turns


def where(rng):
    n = rng.randint(2, 3)
    who = _names(rng, n) if rng.random() < 0.5 else [w.invent(rng).capitalize() for _ in range(n)]
    cities = rng.sample(w.CITIES, n) if rng.random() < 0.6 else [w.invent(rng).capitalize() for _ in range(n)]
    jobs = rng.sample(w.JOBS, n)
    text = " ".join(f"{p} is {w.article(j)} and lives in {c}." for p, j, c in zip(who, jobs, cities))
    turns = []
    for k in range(rng.randint(2, 5)):
        i = rng.randrange(n)
        p, j, c = who[i], jobs[i], cities[i]
        ask, answer = rng.choice([
            (f"Where does {p} live?", f"{p} lives in {c}."), (f"Who lives in {c}?", f"{p} lives in {c}."),
            (f"What does {p} do?", f"{p} is {w.article(j)}."), (f"Who is the {j}?", f"{p} is the {j}."),
            (f"Where does the {j} live?", f"The {j} lives in {c}."),
            (f"What is the job of {p}?", f"{p} is {w.article(j)}.")])
        turns.append((text + " " + ask if k == 0 else ask, answer))
    return turns


def columns(rng, low=2, high=4):
    out = []
    for _ in range(rng.randint(low, high)):
        r = rng.random()
        c = (rng.choice(w.NUMBER_COLUMNS) if r < 0.4 else rng.choice(list(w.TEXT_COLUMNS)) if r < 0.7
             else w.identifier(rng))
        if c not in out:
            out.append(c)
    return out


def table_name(rng):
    r = rng.random()
    if r < 0.6:
        return rng.choice(w.PLURALS)
    if r < 0.75:
        return rng.choice(w.ADJECTIVES) + "_" + rng.choice(w.PLURALS)
    return w.invent(rng) + rng.choice(["", "s"])


def table(rng):
    """A table told in words; its name, its columns, their order."""
    t, cols = table_name(rng), ["id"] + columns(rng)
    text = rng.choice([f"The table {t} has the columns {w.join_and(cols)}.",
                       f"There is a table {t} with the columns {', '.join(cols)}.",
                       f"We keep a list {t} ({', '.join(cols)}).",
                       f"The head of the table {t} reads {' | '.join(cols)}."])
    turns = []
    for k in range(rng.randint(1, 4)):
        i = rng.randrange(len(cols))
        c = cols[i]
        r = rng.randrange(9)
        if r == 0:
            ask, answer = "What is the name of the table?", f"The table is called {t}."
        elif r == 1:
            ask, answer = "How many columns are there?", f"There are {len(cols)} columns."
        elif r == 2:
            ask, answer = f"What is the {w.ORDINALS[i]} column?", c
        elif r == 3 and i + 1 < len(cols):
            ask, answer = f"Which column comes after {c}?", cols[i + 1]
        elif r == 4 and i > 0:
            ask, answer = f"Which column comes before {c}?", cols[i - 1]
        elif r == 5:
            ask, answer = f"List all columns of {t}.", ", ".join(cols)
        elif r == 6:
            said = c.replace("_", " ")
            ask = rng.choice([f"Which column holds the {said} of the {t}?",
                              f"Where do I find the {said} of each row?",
                              f"I want to know the highest {said}. Which column is it?",
                              f"I want the {said} of all {t}. Which column do I read?"])
            answer = c
        elif r == 7 and len(cols) > 2:
            a, b = rng.sample(cols[1:], 2)
            ask = f"I need the {a.replace('_', ' ')} and the {b.replace('_', ' ')}. Which columns are they?"
            answer = f"{a}, {b}"
        else:
            ask, answer = "What is the last column?", cols[-1]
        turns.append((text + " " + ask if k == 0 else ask, answer))
    return turns


def value(rng, kind):
    pools = {"city": w.CITIES, "country": w.COUNTRIES, "name": w.FIRST_NAMES, "colour": w.COLOURS,
             "place": w.PLACES, "material": w.MATERIALS, "month": w.MONTHS, "day": w.DAYS,
             "status": w.STATUSES, "shape": w.SHAPES}
    if kind == "invented" or (kind in ("city", "name") and rng.random() < 0.3):
        return w.invent(rng).capitalize()
    return rng.choice(pools[kind])


def rows(rng):
    """A few rows of a table; look up a cell, find a row, compare, count."""
    t = rng.choice(w.PLURALS)
    text_col = rng.choice(list(w.TEXT_COLUMNS))
    num_col = rng.choice(w.NUMBER_COLUMNS)
    n = rng.randint(2, 3)
    keys = []
    while len(keys) < n:
        x = value(rng, w.TEXT_COLUMNS[text_col])
        if x not in keys:
            keys.append(x)
    nums = [10 * tens + rng.randint(1, 9) for tens in rng.sample(range(0, 10), n)]
    head = rng.choice([f"The table {t} has these rows: ", f"Table of {t}: "])
    text = head + "; ".join(f"{text_col} {k}, {num_col} {v}" for k, v in zip(keys, nums)) + "."
    turns = []
    for k in range(rng.randint(2, 4)):
        i = rng.randrange(n)
        hi, lo = nums.index(max(nums)), nums.index(min(nums))
        ask, answer = rng.choice([
            (f"What is the {num_col} where the {text_col} is {keys[i]}?", str(nums[i])),
            (f"Which {text_col} has the {num_col} {nums[i]}?", keys[i]),
            (f"How many rows are there?", str(n)),
            (f"Which {text_col} has the highest {num_col}?", keys[hi]),
            (f"Which {text_col} has the lowest {num_col}?", keys[lo]),
            (f"List the {text_col} of all {t}.", ", ".join(keys)),
            (f"Write the {text_col} of the {w.ORDINALS[i]} row in quotes.", f"'{keys[i]}'")])
        turns.append((text + " " + ask if k == 0 else ask, answer))
    return turns


def sign(rng):
    place, text = rng.choice(w.PLACES), rng.choice(w.SIGN_PHRASES)
    other = rng.choice(w.SIGN_PHRASES)
    ask = rng.choice([f"The sign at the {place} says {text}. What does the sign say?",
                      f"On the door it says {other}. On the sign at the {place} it says {text}. What is on the sign?"])
    if rng.random() < 0.5:
        words = rng.sample(w.CAPITAL_WORDS, rng.randint(2, 4))
        text = " ".join(x for x in words if x != "FROM" or "SELECT" not in words)  # nothing like SQL
        ask = rng.choice([f"Write in capitals: {text.lower()}", f"Put this in capital letters: {text.lower()}"])
    turns = [(ask, text)]
    if rng.random() < 0.4:
        turns.append(("What is the first word?", text.split()[0]))
    if rng.random() < 0.3:
        turns.append(("What is the last word?", text.split()[-1]))
    return turns


def swap(rng):
    a, b = some_words(rng, 2, 2)
    pattern = rng.choice(["the {} is in the box", "give me the {} and two coins", "my {} is old",
                          "we saw the {} at the mill", "put {} on the list", "({})", "{} = 5", "{}, {} and tea"])
    turns = [(f"Write {b} in place of {a}: " + pattern.replace("{}", a), pattern.replace("{}", b))]
    return turns


def unknown(rng):
    """Nobody told: the model should say so."""
    x = w.invent(rng).capitalize()
    return [(rng.choice([f"Where does {x} live?", f"What is {x}'s job?", f"What colour is {x}'s house?",
                         f"Who is {x}?", f"What does {x} like to eat?", f"What is {x} for?",
                         f"What pet does {x} have?", f"Do you know {x}?"]), "I do not know that.")]


# (task, share of the task rows)
TASKS = [
    (repeat, 13), (mark, 12), (condition, 5), (in_list, 10), (compare, 4), (have, 18), (amounts, 8),
    (where, 18), (table, 14), (rows, 13), (sign, 5), (swap, 4), (unknown, 2),
]
# Tasks whose every turn can be asked alone; in the others, later turns lean on the first.
ALONE = {mark, condition, compare}
