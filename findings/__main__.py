"""Every table of the documentation's results, made from the runs that lie here.

python -m findings            write them into the pages, and draw the pictures
"""

from findings._docs import commands, filled, tables_of
from findings.maker import draw

if __name__ == "__main__":
    for page, made in commands().items():
        text = page.read_text(encoding="utf-8")
        page.write_text(filled(text, tables_of(made)), encoding="utf-8")
        for each in made:
            if picture := each.function("picture"):
                draw(picture, each.folder)
