"""The benchmark's prompts: fifteen in five classes, written for it. Classes differ in how much of the answer can
be looked up in the prompt and in what was said before."""

HARBOUR = """The harbour of Velmora has three basins. The north basin was dug in 1871 and is used by fishing
boats; it is nine metres deep and closed to ships longer than sixty metres. The south basin was finished in 1904,
is fourteen metres deep, and handles grain, timber and salt. The third basin, called the Lantern Basin because of
the old lighthouse on its mole, has been a museum harbour since 1988: six historic ships lie there, among them the
ice-breaker Halvard and the schooner Maren. Entry to the museum harbour costs 8 crowns, children under twelve pay
nothing. It is open from 9 to 17 o'clock from April to October, and from 10 to 15 o'clock in the other months,
except on Mondays. The harbour master's office stands at the south basin. Ships announce themselves on channel 12,
and no ship may enter any basin when the wind blows with more than 25 metres per second from the west."""

MINUTES = """Minutes of the greenhouse committee, 4 March. Present: Ana, Bo, Chidi, Dagny. 1. Heating: the boiler
failed twice in February. Bo asks three firms for offers by 20 March. 2. Tomatoes: 140 seedlings are ready, 30 more
than planned; Dagny gives the surplus to the school. 3. Water: the cistern loses about 40 litres a day. Chidi looks
for the leak and reports on 11 March. 4. Money: the account holds 2,315.50. The committee may spend at most 600
without a vote of all members. 5. Open day: 18 May, from 10 to 16. Ana writes the invitation, Chidi and Dagny lead
the tours, Bo brews coffee. Next meeting: 11 March at 18:30 in the potting shed."""

LISTING = """def parse_duration(text):
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    total = 0
    number = ""
    for character in text:
        if character.isdigit():
            number += character
        elif character in units:
            total += int(number) * units[character]
            number = ""
        elif not character.isspace():
            raise ValueError("unknown unit: " + character)
    if number:
        raise ValueError("missing unit behind " + number)
    return total
"""

PROMPTS: dict[str, list[str]] = {
    "chat": [
        "Explain to a ten-year-old why the sky is blue and why sunsets are red.",
        "I have two free days in a small town by the sea in November. What could I do?",
        "What are the advantages and disadvantages of working from home? Answer in a few paragraphs.",
    ],
    "code": [
        "Write a Python class for a stack with push, pop, peek and is_empty, with docstrings, and show its use.",
        "Write a Python function that reads a CSV file and returns a list of dictionaries. Add error handling.",
        "Write a bash script that renames all .jpeg files in a directory to .jpg and prints what it did.",
    ],
    "json": [
        "Give me a JSON array of six books, each with title, author, year and genre. Output only JSON.",
        "Write a JSON object that describes a weekly timetable of a school class: for each day from monday to "
        "friday a list of lessons with subject, room and start. Output only JSON.",
        "Turn this into a JSON array of objects with the keys name, age and city: Ann is 31 and lives in Oslo; "
        "Ben is 45 and lives in Rome; Cleo is 28 and lives in Lima; Dan is 52 and lives in Cork.",
    ],
    "grounded": [
        f"Copy the following text and underline nothing, change nothing:\n\n{HARBOUR}",
        f"Here are minutes of a meeting:\n\n{MINUTES}\n\nRepeat each numbered item word for word, and add after "
        "each who is responsible.",
        f"Here is a function:\n\n```python\n{LISTING}```\n\nReturn the same function with the variable `total` "
        "renamed to `seconds` and a docstring. Output only the code.",
    ],
    "languages": [
        "Schreibe einen kurzen Brief an eine Freundin über einen Spaziergang im Herbst 🍂, mit Emojis.",
        "Écris une liste de dix plats français avec un emoji pour chacun 🥐🧀.",
        "Translate into Spanish, German and French, with a flag emoji before each: 'Good morning, how are you "
        "today? The train leaves at nine.' 🚆",
    ],
}


def all_prompts() -> list[tuple[str, str]]:
    """(class, prompt) in order."""
    return [(kind, prompt) for kind, prompts in PROMPTS.items() for prompt in prompts]
