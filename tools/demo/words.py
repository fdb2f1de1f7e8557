# SPDX-License-Identifier: Apache-2.0
"""Word lists of the demo model's small world, and names that nobody has seen before.

Everything here is drawn from by make_corpus.py (the base model's text) and make_sql.py (the quick
start's task), so that every word of the task is an ordinary English word to the base model.
"""

COLOURS = "red blue green yellow white black brown grey orange purple pink silver golden".split()
SIZES = "big small tall short long little large tiny round heavy light old new".split()
MATERIALS = "wood stone glass paper wool metal clay leather".split()
CITIES = (
    "Oslo Paris Rome Cairo Lima Tokyo Dublin Madrid Vienna Athens Bergen Quito Delhi Prague Lyon "
    "Porto Turin Ghent Basel Leeds Malmo Tampa Kyoto Havana"
).split()
COUNTRIES = "Norway France Italy Egypt Peru Japan Ireland Spain Austria Greece India Chile".split()
FIRST_NAMES = (
    "Anna Ben Carla David Ella Frank Grace Henry Iris Jack Kate Leo Maria Nick Olga Paul Rosa Sam "
    "Tina Victor Wendy Adam Bella Colin Dora Eric Fiona George Helen Ivan Julia Karl Lucy Martin "
    "Nora Oscar Peter Ruth Simon Tara"
).split()
WOMEN = set(
    "Anna Carla Ella Grace Iris Kate Maria Olga Rosa Tina Wendy Bella Dora Fiona Helen Julia Lucy "
    "Nora Ruth Tara".split()
)
ANIMALS = (
    "cat dog horse cow sheep goat pig hen duck goose rabbit mouse fox bear wolf owl frog bee "
    "donkey deer"
).split()
FOODS = (
    "bread cheese soup apples pears honey rice cake milk carrots beans plums eggs butter nuts "
    "berries fish salad"
).split()
OBJECTS = (
    "lamp box chair table kite ball book cup bag hat key bell rope basket clock coat spoon broom "
    "ladder candle drum flute map ring shovel bucket blanket mirror pencil wagon bottle brush "
    "ticket letter stamp button plate pillow hammer wheel"
).split()
PLACES = (
    "mill market harbour garden forest river school bakery station bridge field barn tower museum "
    "library kitchen park hill lake shop"
).split()
JOBS = (
    "baker farmer teacher fisher tailor doctor miller painter carpenter gardener singer driver "
    "cook nurse sailor writer potter smith shepherd guard"
).split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
ORDINALS = "first second third fourth fifth sixth".split()

# Nouns that name many things: table names. Disjoint shares of them go to the splits of the task.
PLURALS = (
    "shipments orders parts workers students teachers books films songs boats trains planes cars "
    "houses rooms gardens farms shops markets tickets letters stamps tools machines lamps chairs "
    "tables clocks coats shoes hats bags boxes bottles cups plates bikes wagons horses dogs cats "
    "birds sheep goats trees flowers plants seeds fruits meals cakes soups drinks recipes games "
    "toys teams players matches races clubs schools classes lessons exams museums paintings "
    "statues towers bridges rivers lakes hills islands harbours stations roads trips hotels "
    "guests visitors members customers sellers drivers doctors nurses patients pets artists "
    "singers bands concerts stories writers papers reports projects tasks meetings offices "
    "desks phones radios cameras robots batteries engines wheels ropes nails bricks"
).split()

# Columns that hold text, with the kind of value they hold; and columns that hold numbers.
TEXT_COLUMNS = {
    "city": "city", "country": "country", "name": "name", "owner": "name", "colour": "colour",
    "kind": "invented", "brand": "invented", "maker": "invented", "place": "place",
    "material": "material", "month": "month", "day": "day", "label": "invented",
    "author": "name", "captain": "name", "team": "invented", "town": "city", "origin": "country",
    "leader": "name", "street": "invented", "region": "invented", "model": "invented",
    "driver": "name", "title": "invented", "status": "status", "category": "status",
    "shape": "shape", "buyer": "name", "village": "invented", "harbour": "city",
}
NUMBER_COLUMNS = (
    "price weight size age height length width year score level points stock speed cost amount "
    "rank distance hours days seats pages floor number depth grade power volume wage rating "
    "salary budget profit capacity duration visits goals steps area income"
).split()
ADJECTIVES = (
    "unit gross first last home main net daily best sale base short full market early late north "
    "south extra final public old new top"
).split()
STATUSES = "open closed ready late lost sold free full broken clean".split()
SHAPES = "round square flat oval long thin wide curved".split()

# Words of signs and headings, in capitals. They are plain English here.
SIGN_PHRASES = (
    "SELECT A SEAT|SELECT YOUR TICKET|WHERE TO GO|WHERE TO EAT|COUNT YOUR CHANGE|COUNT TO TEN|"
    "ORDER HERE|ORDER BY PHONE|ORDER BY FRIDAY|LIMIT TWO PER PERSON|SPEED LIMIT|GROUP TICKETS|"
    "GROUP BY THE DOOR|FROM HERE TO THE MILL|FRESH FROM THE FARM|MADE BY HAND|DISTINCT COLOURS|"
    "STAND BY|OPEN AND FREE|SALT AND BREAD|SUM OF ALL PARTS|THE SUM IS DUE|MAX SPEED|MIN AGE|"
    "MAX HEIGHT|MIN HEIGHT|AVG PRICE|AVG SCORE|DESC OF THE SHOP|ASC TO THE TOWER|KEEP OUT|NO FISHING|"
    "WET PAINT|MIND THE STEP|PLEASE WAIT|QUIET ROOM|WAY OUT|PUSH THE DOOR|HOT SOUP|FREE ENTRY|"
    "LOST AND FOUND|NEW BOOKS|TURN LEFT|TURN RIGHT|BY THE RIVER|FROM DAY TO NIGHT|"
    "WHERE IS THE KEY|SELECT AND PAY|LIMIT YOUR TIME|COUNT ON US|"
    "A DISTINCT SMELL|DISTINCT AND CLEAR|GROUP ROOM|DESC AND PRICE"
).split("|")
CAPITAL_WORDS = sorted({w for p in SIGN_PHRASES for w in p.split()})
# Short forms of long words, as a shopkeeper would write them.
SHORT_FORMS = {
    "average": "AVG", "maximum": "MAX", "minimum": "MIN", "descending": "DESC", "ascending": "ASC",
    "number": "NO", "street": "ST", "doctor": "DR", "mister": "MR", "kilogram": "KG",
}

_ONSETS = "b br c d dr f g gr h j k kl l m n p pr r s st t tr v w z".split()
_VOWELS = "a e i o u".split()
_CODAS = ["", "", "", "l", "m", "n", "r", "s", "k", "t", "x"]


def invent(rng):
    """A word of two or three made-up syllables, such as 'zorvik'."""
    count = 2 if rng.random() < 0.75 else 3
    word = ""
    for i in range(count):
        coda = rng.choice(_CODAS) if i == count - 1 or rng.random() < 0.3 else ""
        word += rng.choice(_ONSETS) + rng.choice(_VOWELS) + coda
    return word


def identifier(rng):
    """A snake_case name: real words, invented ones, or both."""
    r = rng.random()
    if r < 0.4:
        return rng.choice(ADJECTIVES) + "_" + rng.choice(NUMBER_COLUMNS)
    if r < 0.6:
        return rng.choice(OBJECTS) + "_" + rng.choice(NUMBER_COLUMNS + list(TEXT_COLUMNS))
    if r < 0.8:
        return invent(rng) + "_" + rng.choice(NUMBER_COLUMNS + list(TEXT_COLUMNS))
    return invent(rng)


def article(noun):
    return ("an " if noun[0].lower() in "aeiou" and not noun.startswith("unit") else "a ") + noun


def be(column):
    """'is' or 'are' for the name of a column."""
    last = column.split("_")[-1]
    return "are" if last in NUMBER_COLUMNS and last.endswith("s") else "is"


def join_and(items):
    """'a', 'a and b', 'a, b and c'."""
    items = list(items)
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def number(rng):
    """A whole number of one to four digits; short ones are more frequent."""
    r = rng.random()
    if r < 0.2:
        return rng.randint(2, 9)
    if r < 0.7:
        return rng.randint(10, 99)
    if r < 0.92:
        return rng.randint(100, 999)
    return rng.randint(1000, 9999)
