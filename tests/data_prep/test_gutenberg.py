"""Project Gutenberg's frame, in the styles of four decades."""

import pytest

from data_prep.text.books import take_off_frame

STORY = "[Transcriber's note: spelling kept.]\n\nCHAPTER I\n\nThe story.\n\nThe end of it."
NEW = (
    "The Project Gutenberg eBook of A Tale,\nby Ann Walker\n\nTitle: A Tale\n       Of Two Lines\n\n"
    "Author: Ann Walker\n\nLanguage: English\n\n"
)
FRAMES = {
    "2020": (
        NEW
        + "*** START OF THE PROJECT GUTENBERG EBOOK A TALE ***\n\n\nProduced by B. C. and the\nonline team\n\n\n",
        "\n\n*** END OF THE PROJECT GUTENBERG EBOOK A TALE ***\n\nLicence\n*** START: FULL LICENSE ***\nmore",
    ),
    "2006": (
        NEW + "***START OF THE PROJECT GUTENBERG EBOOK A TALE***\n\n\nE-text prepared by B. C.\n\n\n\n",
        "\n\nEnd of the Project Gutenberg EBook of A Tale, by Ann Walker\n\n"
        "*** END OF THIS PROJECT GUTENBERG EBOOK A TALE ***\n\nLicence",
    ),
    "1999": (
        "Project Gutenberg Etext of A Tale\n\n***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***\nLaw\n"
        "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\n\n"
        "This etext was prepared by B. C.\n\n\n",
        "\n\n\nEnd of The Project Gutenberg Etext of A Tale, by Ann Walker\n",
    ),
    "1994": (
        "Law\n*END THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.02.11.94*END*\n\n",
        "\n\n\nEnd of Project Gutenberg's A Tale\n\n***START**THE SMALL PRINT! LAW*START***\nLaw",
    ),
}


@pytest.mark.parametrize("style", FRAMES)
def test_every_style_is_taken_off(style):
    header, footer = FRAMES[style]
    assert take_off_frame(header + STORY + footer).text == STORY


def test_the_header_tells_title_and_author():
    header, footer = FRAMES["2020"]
    frame = take_off_frame(header + STORY + footer)
    assert (frame.title, frame.author) == ("A Tale Of Two Lines", "Ann Walker")


@pytest.mark.parametrize(
    "text", [STORY, "Title: no header\n\nProduced by hand.\n\nThe End of the Project was near."]
)
def test_other_text_stays_as_it_is(text):
    assert take_off_frame(text).text == text
    assert take_off_frame(text).title == ""


def test_a_book_that_speaks_of_the_frame_far_inside_keeps_its_text():
    inside = "x" * 200_000 + "\n*** START OF THE PROJECT GUTENBERG EBOOK ***\n" + "y" * 200_000
    assert take_off_frame(inside).text == inside


def test_hostile_text_takes_linear_time():
    for text in ("*** START OF THE PROJECT GUTENBERG " * 30_000, "\n" * 1_000_000, "Produced by\n" * 80_000):
        assert take_off_frame(text).text.strip() == text.strip()
        framed = take_off_frame("*** START OF THE PROJECT GUTENBERG EBOOK ***\n" + text)
        assert framed.text.strip() == text.strip()
