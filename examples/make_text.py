#!/usr/bin/env python3
"""Writes text.txt: some 80 KB of plain sentences about a mosaic workshop, made from a small grammar with a fixed seed. Ours, hence free to ship.

    make_text.py [OUT]
"""
import os
import random
import sys

people = ["the mason", "the apprentice", "the old painter", "Mira", "Tobias", "the glazier", "a visitor", "the foreman", "Ines", "her brother"]
tiles = ["tile", "shard", "stone", "piece of glass", "pebble", "sliver of marble", "square of clay"]
colours = ["blue", "white", "ochre", "deep red", "green", "grey", "golden", "black"]
places = ["on the north wall", "by the window", "in the courtyard", "under the arch", "beside the well", "in the long hall", "near the stairs"]
times = ["In the morning", "At noon", "Before the rain", "In the evening", "On the third day", "After the frost", "That summer", "Late at night"]
makes = ["sets", "cuts", "sorts", "counts", "polishes", "carries", "washes", "weighs"]
reasons = ["because the line must not break", "so that no gap is left", "for the pattern asks for it", "since the light falls there",
           "as the drawing says", "because each hand holds only one part", "so that the whole can be seen from afar"]
ends = ["The wall grows.", "Nobody speaks.", "The work goes on.", "It fits.", "The mortar dries slowly.", "There is dust on every sleeve.",
        "The pattern is almost whole.", "They begin again."]
numbers = ["two", "three", "four", "eight", "sixteen", "a hundred"]


def sentence(r):
    who, tile, colour = r.choice(people), r.choice(tiles), r.choice(colours)
    kind = r.randrange(6)
    if kind == 0:
        return "%s %s %s a %s %s %s." % (r.choice(times), who, r.choice(makes), colour, tile, r.choice(places))
    if kind == 1:
        return "%s %s the %s %s, %s." % (who[0].upper() + who[1:], r.choice(makes), colour, tile, r.choice(reasons))
    if kind == 2:
        return "There are %s boxes %s, and in each of them lies a %s %s." % (r.choice(numbers), r.choice(places), colour, tile)
    if kind == 3:
        return "\"Where does the %s %s go?\" asks %s. \"%s,\" says %s." % (colour, tile, who, r.choice(places).capitalize(), r.choice(people))
    if kind == 4:
        return "No %s is laid twice, and no %s is lost." % (tile, r.choice(tiles))
    return r.choice(ends)


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "text.txt")
    r, text = random.Random(17), ""
    while len(text) < 80000:
        text += " ".join(sentence(r) for _ in range(r.randrange(4, 9))) + "\n\n"
    with open(out, "w", encoding="ascii") as f:
        f.write(text)
    print("%s: %d bytes" % (out, len(text)))


if __name__ == "__main__":
    main()
