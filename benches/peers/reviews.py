"""1,000 made-up movie reviews with their truth, the same on every machine.

Each review has a number (#0042), from which `truth_of` returns what a perfect reader would find.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

GENRES = {
    "Western": "Horses, dust and a last duel at the saloon",
    "Musical": "Everybody sings, and the choir on the roof is worth the ticket",
    "Space opera": "Two fleets of starships, a princess and a robot",
}
VERDICTS = {
    1: "I left before the end and want my evening back",
    2: "It drags, and the jokes fall flat",
    3: "Some scenes work, others do not",
    4: "A good film that I recommend to friends",
    5: "A masterpiece; I shall see it again tomorrow",
}
PEOPLE = [
    f"{first} {last}"
    for first in ("Ada", "Bruno", "Carla", "Dmitri", "Elif")
    for last in ("Abara", "Bellini", "Castro", "Dlamini", "Eriksen", "Fontaine", "Gruber", "Haddad")
]
NUMBER = re.compile(r"#(\d{4})")


class Truth(NamedTuple):
    genre: str
    stars: int
    #: Seconds of applause; no two reviews have the same.
    applause: int
    #: A person whom only this review names.
    person: str | None


def make_reviews(count: int, seed: int = 1) -> tuple[list[str], list[Truth]]:
    chance = random.Random(seed)
    applause = chance.sample(range(1, count + 1), count)
    named = dict(zip(chance.sample(range(count), min(len(PEOPLE), count)), PEOPLE))
    texts, truths = [], []
    for n in range(count):
        truth = Truth(chance.choice(list(GENRES)), chance.randint(1, 5), applause[n], named.get(n))
        title = f"The {chance.choice(['Paper', 'Silent', 'Crimson', 'Borrowed', 'Last'])} "
        title += chance.choice(["Lighthouse", "Harbour", "Orchard", "Winter", "Telegram", "Mirror"])
        sentences = [
            f"{title}, seen at the {chance.choice(['Odeon', 'Rex', 'Lux', 'Capitol'])}.",
            f"{GENRES[truth.genre]}.",
            f"{VERDICTS[truth.stars]}.",
            f"The audience applauded for {truth.applause} seconds.",
        ]
        if truth.person:
            sentences.append(f"{truth.person} sat next to me.")
        texts.append(f"#{n:04} " + " ".join(sentences))
        truths.append(truth)
    return texts, truths
