# SPDX-License-Identifier: Apache-2.0
"""What a machine is called. Hypervisors often hide which processor it is behind a bare name, and
two generations under one name differ by a factor of two: the family tells them apart."""

import re

# By vendor's family: the first and the last model, and the generation.
GENERATIONS = {
    "23": [(0x00, 0x2F, "Zen"), (0x30, 0xFF, "Zen 2")],
    "25": [(0x00, 0x0F, "Zen 3"), (0x10, 0x1F, "Zen 4"), (0x20, 0x5F, "Zen 3"),
           (0x60, 0xAF, "Zen 4")],
    "26": [(0x00, 0x4F, "Zen 5"), (0x60, 0x7F, "Zen 5")],
    "6": [(85, 85, "Skylake"), (106, 106, "Ice Lake"), (143, 143, "Sapphire Rapids"),
          (173, 173, "Granite Rapids"), (207, 207, "Emerald Rapids")],
}


def generation(family):
    """Of "family/model" as the kernel counts them; empty where it is none of those above."""
    found = re.fullmatch(r"(\d+)/(\d+)", family)
    if not found:
        return ""
    model = int(found.group(2))
    for first, last, name in GENERATIONS.get(found.group(1), []):
        if first <= model <= last:
            return name
    return ""


def full_name(machine):
    """The processor's name, and its generation where the name leaves that out."""
    name = generation(machine["family"])
    return f"{machine['cpu']} ({name})" if name else machine["cpu"]


def slug(text):
    text = re.sub(r"\((r|tm)\)", " ", text.lower())
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-")
